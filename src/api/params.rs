//! Query parameters: each known, each once, each with a value that means something.

use std::fmt::Display;
use std::str::FromStr;

use actix_web::{HttpRequest, web};
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::session::event::EventType;

/// Types that one filter may name.
const TYPES_MAX: usize = 64;

/// The parameters of one request. Each is taken out when read; what is left is unknown.
pub(super) struct Params(Vec<(String, String)>);

pub(super) fn bad(detail: impl Into<String>) -> Rejection {
    Rejection::new(Code::QueryInvalid, detail)
}

impl Params {
    pub(super) fn of(req: &HttpRequest) -> Result<Self, Rejection> {
        if req.query_string().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let pairs = web::Query::<Vec<(String, String)>>::from_query(req.query_string());
        let pairs = pairs.map_err(|e| bad(e.to_string()))?.into_inner();
        let twice = pairs
            .iter()
            .enumerate()
            .find(|(i, (name, _))| pairs.iter().skip(i + 1).any(|(other, _)| other == name));
        match twice {
            Some((_, (name, _))) => Err(bad(format!("`{name}` is there twice"))),
            None => Ok(Self(pairs)),
        }
    }

    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// A whole number within bounds.
    pub(super) fn number<T>(&mut self, name: &str, min: T, max: T) -> Result<Option<T>, Rejection>
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        let Some(text) = self.take(name) else {
            return Ok(None);
        };
        let value = text.parse::<T>().ok().filter(|v| *v >= min && *v <= max);
        value
            .map(Some)
            .ok_or_else(|| bad(format!("`{name}` is {min} to {max}")))
    }

    /// A position in a log.
    pub(super) fn cursor(&mut self, name: &str) -> Result<Option<u64>, Rejection> {
        self.take(name)
            .map(|text| parse_cursor(name, &text))
            .transpose()
    }

    /// A cursor that an earlier page gave.
    pub(super) fn page<T: FromStr>(&mut self) -> Result<Option<T>, Rejection> {
        let Some(text) = self.take("page") else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            Rejection::new(
                Code::CursorInvalid,
                "`page` is the `next_page` of the page before",
            )
        })
    }

    /// A comma-separated filter of event types.
    pub(super) fn types(&mut self) -> Result<Option<Vec<EventType>>, Rejection> {
        let Some(text) = self.take("types") else {
            return Ok(None);
        };
        let types: Vec<EventType> = text
            .split(',')
            .map(|t| EventType::parse(t).ok_or_else(|| bad(format!("`types`: no type {t:?}"))))
            .collect::<Result<_, _>>()?;
        if types.len() > TYPES_MAX {
            return Err(bad(format!("`types` names at most {TYPES_MAX} types")));
        }
        Ok(Some(types))
    }

    /// Refuses what nobody read.
    pub(super) fn finish(self) -> Result<(), Rejection> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().take(80).collect();
                Err(bad(format!("there is no parameter `{shown}` here")))
            }
        }
    }
}

/// A position: digits only.
pub(super) fn parse_cursor(name: &str, text: &str) -> Result<u64, Rejection> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| {
        Rejection::new(
            Code::CursorInvalid,
            format!("`{name}` is a position: digits only"),
        )
    })
}
