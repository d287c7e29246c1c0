//! A body that says when it has been handed to the socket.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use longhaul_actors::engine::DeliveryGuard;

/// Gives out its bytes, then waits for one more turn of the connection, in which they are
/// written, and only then says "delivered". A connection that dies before drops the guards,
/// which gives the claims back.
pub(super) struct Guarded {
    bytes: Option<Bytes>,
    len: u64,
    flushed: bool,
    guards: Vec<DeliveryGuard>,
}

impl Guarded {
    pub(super) fn new(bytes: Bytes, guards: Vec<DeliveryGuard>) -> Self {
        Self {
            len: bytes.len() as u64,
            bytes: Some(bytes),
            flushed: false,
            guards,
        }
    }
}

impl MessageBody for Guarded {
    type Error = std::convert::Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.len)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        if let Some(bytes) = self.bytes.take() {
            return Poll::Ready(Some(Ok(bytes)));
        }
        if !self.flushed {
            self.flushed = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.guards.drain(..).for_each(DeliveryGuard::delivered);
        Poll::Ready(None)
    }
}
