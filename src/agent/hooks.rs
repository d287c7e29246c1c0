//! Stop hooks: asked when an agent has nothing left to do.

use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::transcript::Role;
use serde_json::json;

use super::answer::{cut, kept};
use super::drive::{Driver, Halt, unexpected};
use super::past::{HOOK, Next};
use super::{StopHook, StopInput, talk};
use crate::journal::{Begun, Extra, OnDoubt, OnFailure, Step, StepError};
use crate::runner::Failure;
use crate::runner::sandbox::Exec;

/// A shell command of the sandbox: the agent may stop when its exit status is 0, and is told what
/// it wrote when it is not.
#[derive(Debug, Clone)]
pub struct ExecHook {
    /// The command.
    pub command: String,
}

impl StopHook for ExecHook {
    fn check<'a>(&'a self, said: StopInput<'a>) -> BoxFuture<'a, Result<Option<String>, String>> {
        async move {
            let exec = Exec {
                command: self.command.clone(),
                merge_stderr: true,
                ..Exec::default()
            };
            let output = said.sandbox.exec(exec).await.map_err(|e| e.to_string())?;
            if output.exit_code == Some(0) {
                return Ok(None);
            }
            let status = match output.exit_code {
                Some(code) => format!("ended with status {code}"),
                None => "was stopped: its time was over".to_owned(),
            };
            let text = String::from_utf8_lossy(&output.stdout);
            Ok(Some(format!("`{}` {status}:\n{text}", self.command)))
        }
        .boxed()
    }
}

impl Driver<'_> {
    /// Asks a hook. What it says to an agent that may not stop is a message for it.
    pub(super) async fn hook(&mut self, index: usize, hook: &dyn StopHook) -> Result<(), Halt> {
        let step = Step::named(HOOK)
            .at(self.past.hooks)
            .on_doubt(OnDoubt::Retry)
            .on_failure(OnFailure::Retry);
        let about = json!({"hook": index, "pass": self.past.passes});
        let begun = self.journal.begin(step, &about).await;
        let open = match begun.map_err(Halt::of)? {
            Begun::Execute(open) => open,
            _ => return Err(unexpected(HOOK)),
        };
        let said = StopInput {
            sandbox: self.attempt.sandbox(),
            pass: self.past.passes,
        };
        let verdict = match hook.check(said).await {
            Ok(verdict) => verdict.map(|text| cut(&text)),
            Err(why) => {
                let error = StepError::new("agent.hook_failed", why.clone());
                let failed = self.journal.fail(open, error, None, Extra::default());
                failed.await.map_err(Halt::of)?;
                return Err(Failure::run("agent.hook_failed", why).into());
            }
        };
        let goes_on = verdict.is_some();
        let is_last = self.past.passes >= self.spec.limits.passes_max;
        let text = verdict.filter(|_| !is_last).unwrap_or_default();
        let mut extra = Extra::default();
        if !text.is_empty() {
            let content = json!({"role": "user", "text": text, "by": "stop_hook"});
            extra.events.push(("agent.message".to_owned(), content));
        }
        let value = json!({"go_on": goes_on});
        let ended = self.journal.complete(open, kept(&value), extra).await;
        let ids = ended.map_err(Halt::of)?.event_ids;
        self.past.hooks += 1;
        if !goes_on {
            self.past.next = Next::Hook(index + 1);
            return Ok(());
        }
        if is_last {
            let text = format!(
                "a stop hook is not content after {} passes",
                self.past.passes
            );
            return Err(Failure::run("agent.passes_exhausted", text).into());
        }
        self.past.next = Next::Model;
        if let (Some(id), Some(talk)) = (ids.first(), &mut self.talk) {
            talk.push(talk::text(Role::User, id.seq(), text));
        }
        Ok(())
    }
}
