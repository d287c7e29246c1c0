//! Steps that give many values, one after the other.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;

use super::{JournalError, StepError};

/// The values of a step that gives many; see [`Journal::stream`](super::Journal::stream).
#[derive(Debug)]
pub struct Chunks<T, S> {
    source: Option<S>,
    kept: Vec<T>,
}

impl<T: Unpin, E, S> Stream for Chunks<T, S>
where
    E: Into<StepError>,
    S: Stream<Item = Result<T, E>> + Unpin,
{
    type Item = Result<T, JournalError>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let _ = &this.source;
        Poll::Ready(this.kept.pop().map(Ok))
    }
}
