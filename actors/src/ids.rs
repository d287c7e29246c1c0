//! Names of things: a prefix and a UUIDv7 in simple form. Ids name; order always comes from `seq`.

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an id here is `{prefix}` followed by 32 lower-case hexadecimal digits")]
pub struct IdError {
    /// The wanted prefix, with its underscore.
    pub prefix: &'static str,
}

fn parse_hex(text: &str, prefix: &'static str) -> Result<[u8; 16], IdError> {
    let hex = text.strip_prefix(prefix).ok_or(IdError { prefix })?;
    let lower = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if hex.len() != 32 || !lower {
        return Err(IdError { prefix });
    }
    u128::from_str_radix(hex, 16)
        .map(u128::to_be_bytes)
        .map_err(|_| IdError { prefix })
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// The prefix on the wire.
            pub const PREFIX: &'static str = $prefix;

            /// Reads the wire form.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                parse_hex(text, $prefix).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{:032x}", $prefix, u128::from_be_bytes(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                Self::parse(&text).map_err(D::Error::custom)
            }
        }
    };
}

id!(
    /// A durable conversation.
    SessionId, "sess_"
);
id!(
    /// One execution inside a session.
    RunId, "run_"
);
id!(
    /// One event; carries its `seq` in the low 40 bits.
    EventId, "evt_"
);
id!(
    /// A tenant.
    WorkspaceId, "ws_"
);
id!(
    /// An agent deployment.
    DeploymentId, "dep_"
);
id!(
    /// An enrolled runner.
    RunnerId, "rnr_"
);
id!(
    /// A harness profile revision (by content).
    HarnessRevision, "hrv_"
);
id!(
    /// A sandbox profile revision (by content).
    SandboxRevision, "sbx_"
);

id!(
    /// A way back to a disk and a place in the conversation.
    CheckpointId, "ckpt_"
);

id!(
    /// The right to answer for a fork's copy of a disk: secret, kept in memory only.
    CloneToken, "cln_"
);

const SEQ_BITS: u32 = 40;
/// The greatest `seq` that an event id can carry.
pub const EVENT_SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;

impl EventId {
    /// Puts `seq` into the low 40 bits of a UUIDv7.
    pub fn with_seq(uuid: [u8; 16], seq: u64) -> Self {
        let mask = u128::from(EVENT_SEQ_MAX);
        let bits = (u128::from_be_bytes(uuid) & !mask) | (u128::from(seq) & mask);
        Self(bits.to_be_bytes())
    }

    /// The position that the id claims; the event there must still be compared with the id.
    pub fn seq(self) -> u64 {
        // Masked to 40 bits, so the narrowing keeps every bit.
        (u128::from_be_bytes(self.0) & u128::from(EVENT_SEQ_MAX)) as u64
    }
}

/// The right to one attempt: names the session (for routing) and 128 secret random bits.
/// Shown once, to the runner that claimed; the log keeps a digest only.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimToken {
    /// Whose claim.
    pub session: SessionId,
    /// Never reused, never stored.
    pub secret: [u8; 16],
}

impl ClaimToken {
    /// The prefix on the wire.
    pub const PREFIX: &'static str = "clm_";

    /// Reads the wire form: `clm_` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let err = IdError {
            prefix: Self::PREFIX,
        };
        let hex = text.strip_prefix(Self::PREFIX).ok_or(err.clone())?;
        let (a, b) = hex.split_at_checked(32).ok_or(err)?;
        Ok(Self {
            session: SessionId(parse_hex(a, "")?),
            secret: parse_hex(b, "")?,
        })
    }

    /// What is stored in place of the token.
    pub fn digest(&self) -> TokenDigest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"longhaul claim token v1");
        hasher.update(&self.session.0);
        hasher.update(&self.secret);
        let mut out = [0; 16];
        hasher.finalize_xof().fill(&mut out);
        TokenDigest(out)
    }
}

impl fmt::Display for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = (
            u128::from_be_bytes(self.session.0),
            u128::from_be_bytes(self.secret),
        );
        write!(f, "{}{a:032x}{b:032x}", Self::PREFIX)
    }
}

impl fmt::Debug for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret half stays out of traces.
        write!(f, "{}{}…", Self::PREFIX, self.session)
    }
}

/// Digest of a claim token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct TokenDigest(pub [u8; 16]);

impl TokenDigest {
    /// Reads the 32 hexadecimal digits of `Display`.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        parse_hex(text, "").map(Self)
    }
}

impl fmt::Display for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TokenDigest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TokenDigest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_id_leads_to_its_seq() {
        for seq in [1, 99_999, (1 << 32) - 2, EVENT_SEQ_MAX] {
            let id = EventId::with_seq([0xff; 16], seq);
            assert_eq!(id.seq(), seq);
            assert_eq!(EventId::parse(&id.to_string()), Ok(id));
        }
    }

    #[test]
    fn ids_refuse_everything_but_their_form() {
        let hex = "0".repeat(32);
        let upper = format!("sess_{}", "A".repeat(32));
        for bad in [
            "", " ", "..", "/", "sess_", "run_x", &hex, &upper, "sess_%2F",
        ] {
            assert!(SessionId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(SessionId::parse(&format!("run_{hex}")).is_err());
        assert!(SessionId::parse(&format!("sess_{hex}")).is_ok());
        assert!(SessionId::parse(&format!("sess_+{}", "0".repeat(31))).is_err());
    }

    #[test]
    fn a_token_round_trips_and_hides_its_secret() {
        let token = ClaimToken {
            session: SessionId([7; 16]),
            secret: [9; 16],
        };
        assert_eq!(ClaimToken::parse(&token.to_string()), Ok(token));
        assert!(!format!("{token:?}").contains("0909"));
        assert!(ClaimToken::parse("clm_é").is_err());
    }
}
