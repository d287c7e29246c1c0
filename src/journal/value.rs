//! Results of steps, as they are kept.

use bytes::Bytes;
use longhaul_actors::session::step::StepValue;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StepError;

/// What a step can give: every type that serde reads and writes, as JSON, and [`Binary`].
pub trait JournalValue: Sized {
    /// As it is kept.
    ///
    /// # Errors
    /// What cannot be written.
    fn to_kept(&self) -> Result<StepValue, StepError>;

    /// From what was kept.
    ///
    /// # Errors
    /// What does not fit.
    fn from_kept(kept: &StepValue) -> Result<Self, StepError>;
}

impl<T: Serialize + DeserializeOwned> JournalValue for T {
    fn to_kept(&self) -> Result<StepValue, StepError> {
        let json =
            serde_json::to_vec(self).map_err(|e| invalid(format!("cannot be written: {e}")))?;
        Ok(StepValue::Json(json.into()))
    }

    fn from_kept(kept: &StepValue) -> Result<Self, StepError> {
        match kept {
            StepValue::Json(json) => serde_json::from_slice(json)
                .map_err(|e| invalid(format!("cannot be read back: {e}"))),
            StepValue::Bytes { content_type, .. } => {
                Err(invalid(format!("is of type {content_type}, not JSON")))
            }
        }
    }
}

fn invalid(reason: String) -> StepError {
    StepError::new("journal.value_invalid", format!("the value {reason}"))
}

/// Bytes of a type: kept as they are, not as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// MIME type.
    pub content_type: String,
    /// The bytes; at most about 700 KiB, because an event's content is JSON of at most 1 MiB.
    pub bytes: Bytes,
}

impl JournalValue for Binary {
    fn to_kept(&self) -> Result<StepValue, StepError> {
        Ok(StepValue::Bytes {
            content_type: self.content_type.clone(),
            bytes: self.bytes.clone(),
        })
    }

    fn from_kept(kept: &StepValue) -> Result<Self, StepError> {
        match kept {
            StepValue::Bytes {
                content_type,
                bytes,
            } => Ok(Self {
                content_type: content_type.clone(),
                bytes: bytes.clone(),
            }),
            StepValue::Json(_) => Err(invalid("is JSON, not bytes".to_owned())),
        }
    }
}
