//! The provider `none`: for harnesses whose tools need no files and no commands.

use futures_util::future::{BoxFuture, FutureExt, ready};

use super::{
    Entry, Exec, ExecOutput, Launch, Process, Sandbox, SandboxError, SandboxProvider,
    SandboxRequest,
};

/// Makes sandboxes that refuse everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoneProvider;

#[derive(Debug)]
struct NoSandbox;

fn refuse<T: Send + 'static>(what: &str) -> BoxFuture<'static, Result<T, SandboxError>> {
    let text = format!(
        "{what} needs a sandbox, and this deployment's sandbox provider is `none`; use `dir`"
    );
    ready(Err(SandboxError::Unsupported(text))).boxed()
}

impl SandboxProvider for NoneProvider {
    fn kind(&self) -> &str {
        "none"
    }

    fn create(&self, _: SandboxRequest) -> BoxFuture<'_, Result<Box<dyn Sandbox>, SandboxError>> {
        ready(Ok(Box::new(NoSandbox) as Box<dyn Sandbox>)).boxed()
    }
}

impl Sandbox for NoSandbox {
    fn exec(&self, _: Exec) -> BoxFuture<'_, Result<ExecOutput, SandboxError>> {
        refuse("a command")
    }

    fn launch(&self, _: Launch) -> BoxFuture<'_, Result<Process, SandboxError>> {
        refuse("a `process` harness")
    }

    fn read_file(&self, _: String, _: usize) -> BoxFuture<'_, Result<Vec<u8>, SandboxError>> {
        refuse("reading a file")
    }

    fn write_file(&self, _: String, _: Vec<u8>) -> BoxFuture<'_, Result<(), SandboxError>> {
        refuse("writing a file")
    }

    fn list(&self, _: String, _: usize) -> BoxFuture<'_, Result<Vec<Entry>, SandboxError>> {
        refuse("listing a folder")
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}
