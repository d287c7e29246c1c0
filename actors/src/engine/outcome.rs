//! Answers: what a session gives back, and the body that goes out.

use bytes::Bytes;

use crate::session::decision::Granted;
use crate::session::operation::Begun;
use crate::session::step::{self, StepResult};

/// An answer, durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// A JSON object.
    pub body: Bytes,
}

/// What a session gives back.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// HTTP status.
    pub(crate) status: u16,
    /// A JSON object.
    pub(crate) body: Bytes,
    /// What a claim granted.
    pub(crate) granted: Option<Box<Granted>>,
    /// What an operation works with.
    pub(crate) begun: Option<Box<Begun>>,
    /// When a timer is to ask again, milliseconds of wall time.
    pub(crate) again_ms: Option<i64>,
    /// Envelopes that belong into the body as `inputs`.
    pub(crate) inputs: Option<Inputs>,
    /// Answers to operations on the journal, instead of the body; whether as a list.
    pub(crate) steps: Option<(bool, Vec<StepResult>)>,
}

/// Inputs of an answer, cut to one page.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    /// Envelopes, in the order of the log.
    pub(crate) events: Vec<Bytes>,
    /// Position of the last one, where more follow than fit the page: the rest is in the log.
    pub(crate) next_after: Option<u64>,
}

impl Outcome {
    /// The answer on the wire, with its inputs spliced in.
    pub(crate) fn answer(self) -> Answer {
        let body = match (self.inputs, self.steps) {
            (_, Some((many, results))) => step::body(many, &results),
            (None, None) => self.body,
            (Some(inputs), None) => splice(&self.body, &inputs),
        };
        Answer {
            status: self.status,
            body,
        }
    }
}

/// Adds `inputs` (and `inputs_next_after`) to a JSON object. Envelopes are spliced as bytes: a
/// parsed copy of them would lose nothing but time.
fn splice(body: &[u8], inputs: &Inputs) -> Bytes {
    let head = body.trim_ascii_end();
    let head = head.strip_suffix(b"}").unwrap_or(b"{").trim_ascii_end();
    let size: usize = inputs.events.iter().map(|e| e.len() + 1).sum();
    let mut out = Vec::with_capacity(head.len() + size + 64);
    out.extend_from_slice(head);
    if !head.ends_with(b"{") {
        out.push(b',');
    }
    out.extend_from_slice(b"\"inputs\":[");
    for (index, event) in inputs.events.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(event);
    }
    out.push(b']');
    if let Some(after) = inputs.next_after {
        out.extend_from_slice(format!(",\"inputs_next_after\":{after}").as_bytes());
    }
    out.push(b'}');
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_spliced_into_any_object() {
        let inputs = Inputs {
            events: vec![
                Bytes::from_static(b"{\"seq\":1}"),
                Bytes::from_static(b"{\"seq\":2}"),
            ],
            next_after: Some(2),
        };
        for (body, rest) in [("{}", 2), ("{\"state\":\"ready\"}", 3), ("{ } ", 2)] {
            let out = splice(body.as_bytes(), &inputs);
            let value: serde_json::Value = serde_json::from_slice(&out).expect("valid JSON");
            assert_eq!(value["inputs"][1]["seq"], 2, "{body}");
            assert_eq!(value.as_object().expect("object").len(), rest, "{body}");
        }
        let none = splice(b"{\"a\":1}", &Inputs::default());
        assert_eq!(&none[..], b"{\"a\":1,\"inputs\":[]}");
    }
}
