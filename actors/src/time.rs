//! RFC 3339 with milliseconds, UTC: the wire form of every instant.

use chrono::{DateTime, SecondsFormat, Utc};

/// Milliseconds since the epoch, as `2026-01-02T03:04:05.678Z`.
pub fn rfc3339(ms: i64) -> String {
    DateTime::<Utc>::from_timestamp_millis(ms)
        .unwrap_or(DateTime::UNIX_EPOCH)
        .to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Reads the wire form.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    DateTime::parse_from_rfc3339(text)
        .ok()
        .map(|t| t.timestamp_millis())
}

/// `#[serde(with = "crate::time::wire")]` for an `i64` of milliseconds.
pub mod wire {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    /// Writes the wire form.
    pub fn serialize<S: Serializer>(ms: &i64, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&super::rfc3339(*ms))
    }

    /// Reads the wire form.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<i64, D::Error> {
        let text = String::deserialize(d)?;
        super::parse_rfc3339(&text).ok_or_else(|| D::Error::custom("not an RFC 3339 time"))
    }
}

/// `#[serde(with = "crate::time::wire_opt")]` for an optional instant.
pub mod wire_opt {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    /// Writes the wire form, or null.
    pub fn serialize<S: Serializer>(ms: &Option<i64>, s: S) -> Result<S::Ok, S::Error> {
        match ms {
            Some(ms) => s.serialize_str(&super::rfc3339(*ms)),
            None => s.serialize_none(),
        }
    }

    /// Reads the wire form, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<i64>, D::Error> {
        let Some(text) = Option::<String>::deserialize(d)? else {
            return Ok(None);
        };
        let ms = super::parse_rfc3339(&text);
        ms.map(Some)
            .ok_or_else(|| D::Error::custom("not an RFC 3339 time"))
    }
}
