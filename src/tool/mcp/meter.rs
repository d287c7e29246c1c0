//! Limits on what a server sends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Longest message, bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// All that it may send between two of our requests, bytes.
const BETWEEN_BYTES_MAX: u64 = 32 << 20;

/// Counts what came since the last request.
#[derive(Debug, Default)]
pub(super) struct Meter(AtomicU64);

impl Meter {
    /// A request is made: what comes now may answer it.
    pub(super) fn restart(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// A server's output, which ends with an error when it is a flood. The connection ends with it:
/// dropping a message that is too long would leave its caller to wait for ever.
#[derive(Debug)]
pub(super) struct Metered<R> {
    from: R,
    meter: Arc<Meter>,
    line_bytes: usize,
}

impl<R> Metered<R> {
    pub(super) fn new(from: R, meter: Arc<Meter>) -> Self {
        Self {
            from,
            meter,
            line_bytes: 0,
        }
    }

    fn count(&mut self, chunk: &[u8]) -> io::Result<()> {
        for part in chunk.split_inclusive(|b| *b == b'\n') {
            self.line_bytes += part.len();
            if self.line_bytes > MESSAGE_BYTES_MAX {
                return Err(io::Error::other("a message is too long"));
            }
            if part.ends_with(b"\n") {
                self.line_bytes = 0;
            }
        }
        let came = chunk.len() as u64;
        let sum = self.meter.0.fetch_add(came, Ordering::Relaxed) + came;
        if sum > BETWEEN_BYTES_MAX {
            return Err(io::Error::other("too much came that nobody asked for"));
        }
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Metered<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.from).poll_read(context, into))?;
        let came = into.filled().get(before..).unwrap_or_default();
        Poll::Ready(self.count(came))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    async fn read(bytes: Vec<u8>) -> io::Result<u64> {
        let mut metered = Metered::new(bytes.as_slice(), Arc::default());
        tokio::io::copy(&mut metered, &mut tokio::io::sink()).await
    }

    #[tokio::test]
    async fn a_long_message_ends_it() {
        let mut fits = vec![b'x'; MESSAGE_BYTES_MAX - 1];
        fits.push(b'\n');
        let twice = fits.repeat(2);
        assert_eq!(read(twice.clone()).await.unwrap(), twice.len() as u64);
        assert!(read(vec![b'x'; MESSAGE_BYTES_MAX + 1]).await.is_err());
    }

    #[tokio::test]
    async fn many_short_ones_end_it_unless_requests_are_made() {
        let some = "x\n".repeat(9 << 20).into_bytes();
        assert!(read(some.repeat(2)).await.is_err());
        let meter = Arc::new(Meter::default());
        for _ in 0..3 {
            meter.restart();
            let mut metered = Metered::new(some.as_slice(), Arc::clone(&meter));
            let mut all = Vec::new();
            assert_eq!(metered.read_to_end(&mut all).await.unwrap(), some.len());
        }
    }
}
