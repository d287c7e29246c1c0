//! Strict JSON: bounded depth, no duplicate keys, no lone surrogates.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};

use super::objects::Objects;
use crate::code::{Code, Rejection};

/// Deepest nesting of arrays and objects.
pub(super) const DEPTH_MAX: usize = 128;
/// Up to so many keys are compared one by one; beyond, through a set.
const LINEAR_KEYS_MAX: usize = 8;

/// Checks that `body` is one JSON value that every reader understands the same way.
///
/// # Errors
/// `request.body_invalid`, with the position.
pub fn check_json(body: &[u8]) -> Result<(), Rejection> {
    let mut de = serde_json::Deserializer::from_slice(body);
    // The walk below counts depth itself, and stops at its own limit.
    de.disable_recursion_limit();
    let invalid = |e: serde_json::Error| Rejection::new(Code::BodyInvalid, e.to_string());
    Walk(0).deserialize(&mut de).map_err(invalid)?;
    de.end().map_err(invalid)
}

/// Reads a checked body into `T`, telling unknown fields from bad ones.
///
/// # Errors
/// `request.body_invalid`, `request.field_unknown`, `request.field_invalid`.
pub fn parse_strict<T: DeserializeOwned>(body: &[u8]) -> Result<T, Rejection> {
    check_json(body)?;
    typed(body)
}

/// Reads JSON that has passed [`check_json`].
///
/// # Errors
/// `request.field_unknown`, `request.field_invalid`: also for anything but an object.
pub fn typed<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Rejection> {
    // Derived readers would take an array for the fields in order.
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(Rejection::new(Code::FieldInvalid, "an object is expected"));
    }
    let mut de = serde_json::Deserializer::from_slice(json);
    de.disable_recursion_limit();
    T::deserialize(Objects(&mut de)).map_err(|e| field_error(&e))
}

fn field_error(e: &serde_json::Error) -> Rejection {
    let text = e.to_string();
    let code = if text.contains("unknown field") {
        Code::FieldUnknown
    } else {
        Code::FieldInvalid
    };
    Rejection::new(code, worded(text))
}

/// What was expected, in the words of JSON and not in those of the readers.
fn worded(text: String) -> String {
    const EXPECTED: &str = ", expected ";
    let Some((found, wanted)) = text.split_once(EXPECTED) else {
        return text;
    };
    let (wanted, place) = match wanted.rfind(" at line ") {
        Some(at) => wanted.split_at(at),
        None => (wanted, ""),
    };
    let kind = wanted.split(' ').next().unwrap_or_default();
    let wanted = match kind {
        "struct" | "internally" | "adjacently" => "an object",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "tuple" => "an array",
        "enum" => "one of the known names",
        "unit" => "null",
        _ => wanted,
    };
    format!("{found}{EXPECTED}{wanted}{place}")
}

#[derive(Clone, Copy)]
struct Walk(usize);

impl Walk {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        if self.0 >= DEPTH_MAX {
            return Err(E::custom(format_args!("nested deeper than {DEPTH_MAX}")));
        }
        Ok(Self(self.0 + 1))
    }
}

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while seq.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut keys = Keys::default();
        while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
            if let Err(key) = keys.insert(key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// A short string such as an object's key, borrowed where it has no escapes.
pub(super) struct Key<'a>(pub(super) Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string key")
            }
            fn visit_borrowed_str<E>(self, s: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(s)))
            }
            fn visit_str<E>(self, s: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(s.to_owned())))
            }
        }
        d.deserialize_str(V)
    }
}

#[derive(Default)]
struct Keys<'a> {
    few: Vec<Cow<'a, str>>,
    many: HashSet<Cow<'a, str>>,
}

impl<'a> Keys<'a> {
    fn insert(&mut self, key: Cow<'a, str>) -> Result<(), Cow<'a, str>> {
        if self.few.contains(&key) || self.many.contains(&key) {
            return Err(key);
        }
        if self.few.len() < LINEAR_KEYS_MAX {
            self.few.push(key);
        } else {
            self.many.insert(key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        "[".repeat(depth) + &"]".repeat(depth)
    }

    #[test]
    fn depth_is_bounded_exactly() {
        assert!(check_json(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(check_json(nested(DEPTH_MAX + 1).as_bytes()).is_err());
        assert!(check_json(nested(100_000).as_bytes()).is_err());
    }

    #[test]
    fn duplicate_keys_are_found_behind_escapes_and_in_large_objects() {
        assert!(check_json(br#"{"a":1,"b":{"a":1}}"#).is_ok());
        assert!(check_json(br#"{"a":1,"\u0061":2}"#).is_err());
        let many: Vec<_> = (0..1_000).map(|i| format!("\"k{i}\":{i}")).collect();
        assert!(check_json(format!("{{{}}}", many.join(",")).as_bytes()).is_ok());
        assert!(check_json(format!("{{{},\"k999\":0}}", many.join(",")).as_bytes()).is_err());
    }

    #[test]
    fn lone_surrogates_are_refused_and_nul_is_not() {
        assert!(check_json(br#""\ud800""#).is_err());
        assert!(check_json(br#""\udc00\ud800""#).is_err());
        assert!(check_json(br#""\ud83d\ude00 \u0000 \ufffe \\u0000""#).is_ok());
        assert!(check_json(b"\"\xff\"").is_err());
        for bad in ["", "{", "{}x", "nul", "{\"a\":}", "1e999"] {
            assert!(check_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(default)]
        inner: Option<Inner>,
        #[serde(default)]
        list: Vec<Inner>,
        #[serde(default)]
        raw: Option<Box<serde_json::value::RawValue>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(default)]
        n: u32,
    }

    #[test]
    fn no_array_passes_for_an_object_and_no_reader_is_named() {
        let refused = |json: &str| typed::<Outer>(json.as_bytes()).expect_err(json);
        for json in [
            "[]",
            "[null, []]",
            " [1]",
            "7",
            r#"{"inner": [1]}"#,
            r#"{"list": [[1]]}"#,
            r#"{"list": [{"n": 1}, []]}"#,
            r#"{"inner": "x"}"#,
            r#"{"inner": {"n": -1}}"#,
            r#"{"inner": {"n": "x"}}"#,
            r#"{"list": {}}"#,
        ] {
            let why = refused(json);
            assert_eq!(why.code, Code::FieldInvalid, "{json}");
            for word in ["struct", "Outer", "Inner", "u32", "element"] {
                assert!(!why.detail.contains(word), "{json}: {}", why.detail);
            }
        }
        let why = refused(r#"{"list": [{"m": 1}]}"#);
        assert_eq!(why.code, Code::FieldUnknown);
        let read: Outer = typed(br#"{"inner": {"n": 1}, "list": [{"n": 2}], "raw": [1, {}]}"#)
            .expect("objects are read");
        assert_eq!(read.inner.map(|i| i.n), Some(1));
        assert_eq!(read.list.first().map(|i| i.n), Some(2));
        assert_eq!(read.raw.map(|r| r.get().to_owned()), Some("[1, {}]".into()));
    }
}
