//! The journal of the server in a few lines.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ApiError, CallAnswer, World, refused};

/// The steps of all chains, by chain and place.
#[derive(Debug, Default, Clone)]
pub(crate) struct Steps(BTreeMap<String, Step>);

#[derive(Debug, Clone)]
struct Step {
    id: String,
    begin: Value,
    by: (u32, u32),
    end: Option<Value>,
    failures: u32,
}

impl World {
    pub(super) fn steps(&mut self, body: &Value) -> Result<CallAnswer, ApiError> {
        let before = (self.steps.clone(), self.log.len());
        let Some(ops) = body["ops"].as_array().cloned() else {
            let mut op = body.clone();
            op.as_object_mut().unwrap().remove("n");
            let body = self.step(&op)?;
            return Ok(CallAnswer { status: 200, body });
        };
        let results: Result<Vec<_>, _> = ops.iter().map(|op| self.step(op)).collect();
        match results {
            Ok(results) => Ok(CallAnswer {
                status: 200,
                body: json!({ "results": results }),
            }),
            Err(error) => {
                // All or none.
                self.steps = before.0;
                self.log.truncate(before.1);
                Err(error)
            }
        }
    }

    fn step(&mut self, op: &Value) -> Result<Value, ApiError> {
        if op["op"] == "begin" {
            return self.begin(op);
        }
        let by = (self.run, self.attempt);
        let id = op["step_id"].clone();
        let found = self.steps.0.values().find(|s| s.id == id);
        let Some(step) = found.cloned() else {
            return Err(refused(404, "step.not_found", json!({})));
        };
        let done = op["op"] == "complete";
        match &self.refused_value {
            Some((value, code)) if done && op["value"] == *value => {
                return Err(refused(409, code, json!({})));
            }
            _ => {}
        }
        let mut content = op.clone();
        content.as_object_mut().unwrap().remove("op");
        if step.end.as_ref() == Some(&content) && done {
            return Ok(json!({"state": "completed", "step_id": id, "event_ids": []}));
        }
        if step.end.is_some() || step.by != by {
            return Err(refused(409, "step.not_open", json!({})));
        }
        let events = op["events"].as_array().cloned().unwrap_or_default();
        let ids: Vec<_> = events
            .iter()
            .map(|e| self.append(e["type"].as_str().unwrap(), e["content"].clone()))
            .collect();
        let failures = step.failures + u32::from(!done);
        content["event_ids"] = json!(ids);
        content["failures"] = json!(failures);
        self.append(
            if done {
                "step.completed"
            } else {
                "step.failed"
            },
            content.clone(),
        );
        content.as_object_mut().unwrap().remove("event_ids");
        content.as_object_mut().unwrap().remove("failures");
        if let Some(kept) = self.steps.0.values_mut().find(|s| s.id == id) {
            kept.end = Some(content);
            kept.failures = failures;
        }
        let state = if done { "completed" } else { "failed" };
        Ok(json!({"state": state, "step_id": id, "event_ids": ids, "failures": failures}))
    }

    fn begin(&mut self, op: &Value) -> Result<Value, ApiError> {
        let by = (self.run, self.attempt);
        let place = match op.get("idempotency_key") {
            Some(key) => format!("key {key}"),
            None => format!(
                "{} {} {}",
                op.get("path").unwrap_or(&json!("")),
                op["name"],
                op["occurrence"]
            ),
        };
        let key = format!("{} {place}", self.chain);
        let Some(step) = self.steps.0.get(&key).cloned() else {
            let mut content = op.clone();
            for gone in ["op", "on_doubt", "on_failure"] {
                content.as_object_mut().unwrap().remove(gone);
            }
            let id = self.append("step.started", content);
            let step = Step {
                id: id.clone(),
                begin: op.clone(),
                by,
                end: None,
                failures: 0,
            };
            self.steps.0.insert(key, step);
            return Ok(json!({"state": "execute", "step_id": id}));
        };
        if step.begin["input_digest"] != op["input_digest"] {
            let extras = json!({"step_id": step.id});
            return Err(refused(409, "journal.divergence", extras));
        }
        let again = match &step.end {
            None if step.by == by => {
                return Ok(json!({"state": "in_progress", "step_id": step.id}));
            }
            None => op["on_doubt"] == "retry",
            Some(end) if end.get("error").is_some() => op["on_failure"] == "retry",
            Some(_) => false,
        };
        if again {
            self.append("step.resolved", json!({"step_id": step.id, "as": "retry"}));
            if let Some(kept) = self.steps.0.get_mut(&key) {
                kept.by = by;
                kept.end = None;
            }
            return Ok(json!({"state": "execute", "step_id": step.id}));
        }
        Ok(match step.end {
            None => json!({"state": "in_doubt", "step_id": step.id,
                "started_attempt": step.by.1, "started_run_id": super::id("run", step.by.0 as usize)}),
            Some(mut end) if end.get("error").is_some() => {
                end["state"] = json!("failed");
                end["failures"] = json!(step.failures);
                end
            }
            Some(mut end) => {
                end["state"] = json!("completed");
                end
            }
        })
    }
}
