//! Arguments against their JSON Schema: what a model got wrong, said so that it can mend it.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Faults told at once.
const FAULTS_MAX: usize = 8;

/// Checks arguments against the part of JSON Schema that flat arguments need: `required`,
/// `additionalProperties: false`, and of each property `type`, `minimum`, `maximum`, `minLength`,
/// `maxLength` and `enum`. Whatever else a schema says is not looked at.
///
/// # Errors
/// Every fault (at most 8), with the field and what is wanted.
pub fn check(schema: &Value, input: &Value) -> Result<(), String> {
    let Value::Object(fields) = input else {
        return Err(format!(
            "the arguments must be a JSON object, not {}",
            kind(input)
        ));
    };
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let mut faults = Vec::new();
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap_or_default();
        if !fields.contains_key(name) {
            let wanted = properties.get(name).map_or_else(String::new, wanted);
            faults.push(format!("`{name}` is missing: {wanted} is wanted"));
        }
    }
    for (name, value) in fields {
        match properties.get(name) {
            Some(property) => faults.extend(fault(name, property, value)),
            None if schema["additionalProperties"] == Value::Bool(false) => {
                let known: Vec<String> = properties.keys().map(|k| format!("`{k}`")).collect();
                faults.push(format!(
                    "there is no argument `{}`; there are {}",
                    short(name),
                    known.join(", ")
                ));
            }
            None => {}
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    faults.truncate(FAULTS_MAX);
    Err(faults.join("\n"))
}

/// Arguments that were checked, as a type.
///
/// # Errors
/// A text, where the type wants what the schema does not say.
pub(super) fn read<T: DeserializeOwned>(input: &Value) -> Result<T, String> {
    T::deserialize(input).map_err(|e| e.to_string())
}

fn fault(name: &str, property: &Value, value: &Value) -> Option<String> {
    let fits = match property["type"].as_str() {
        Some("string") => value.as_str().is_some_and(|text| {
            let n = text.chars().count() as u64;
            n >= property["minLength"].as_u64().unwrap_or(0)
                && n <= property["maxLength"].as_u64().unwrap_or(u64::MAX)
        }),
        Some("integer") => value.as_i64().is_some_and(|n| {
            n >= property["minimum"].as_i64().unwrap_or(i64::MIN)
                && n <= property["maximum"].as_i64().unwrap_or(i64::MAX)
        }),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    let listed = property["enum"]
        .as_array()
        .is_none_or(|all| all.contains(value));
    if fits && listed {
        return None;
    }
    Some(format!(
        "`{name}` is {}: {} is wanted",
        shown(value),
        wanted(property)
    ))
}

/// What a property may be, in words.
fn wanted(property: &Value) -> String {
    if let Some(all) = property["enum"].as_array() {
        let all: Vec<String> = all.iter().map(Value::to_string).collect();
        return format!("one of {}", all.join(", "));
    }
    let range = |low: &str, high: &str| match (&property[low], &property[high]) {
        (Value::Null, Value::Null) => String::new(),
        (low, Value::Null) => format!(" of at least {low}"),
        (Value::Null, high) => format!(" of at most {high}"),
        (low, high) => format!(" of {low} to {high}"),
    };
    match property["type"].as_str() {
        Some("string") => match range("minLength", "maxLength") {
            any if any.is_empty() => "a string".to_owned(),
            range => format!("a string{range} characters"),
        },
        Some("integer") => format!("a whole number{}", range("minimum", "maximum")),
        Some("boolean") => "true or false".to_owned(),
        Some("array") => "an array".to_owned(),
        Some("object") => "an object".to_owned(),
        _ => "a value".to_owned(),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::String(text) => format!("a string of {} characters", text.chars().count()),
        other => kind(other).to_owned(),
    }
}

fn short(name: &str) -> String {
    name.chars().take(64).collect()
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({
            "type": "object", "additionalProperties": false, "required": ["path"],
            "properties": {
                "path": { "type": "string", "minLength": 1, "maxLength": 9 },
                "limit": { "type": "integer", "minimum": 1, "maximum": 5 },
                "all": { "type": "boolean" },
                "mode": { "enum": ["a", "b"] },
            },
        })
    }

    #[test]
    fn what_fits_passes() {
        for good in [
            json!({"path": "x"}),
            json!({"path": "x", "limit": 5, "all": true, "mode": "b"}),
        ] {
            assert_eq!(check(&schema(), &good), Ok(()), "{good}");
        }
    }

    #[test]
    fn every_fault_is_named_with_what_is_wanted() {
        for (bad, said) in [
            (json!("path"), "must be a JSON object, not a string"),
            (
                json!({}),
                "`path` is missing: a string of 1 to 9 characters is wanted",
            ),
            (json!({"path": ""}), "`path` is a string of 0 characters"),
            (json!({"path": 3}), "`path` is 3: a string"),
            (
                json!({"path": "x", "limit": 6}),
                "`limit` is 6: a whole number of 1 to 5 is wanted",
            ),
            (json!({"path": "x", "limit": 1.5}), "`limit` is 1.5"),
            (json!({"path": "x", "limit": "1"}), "`limit` is a string"),
            (
                json!({"path": "x", "all": 1}),
                "`all` is 1: true or false is wanted",
            ),
            (
                json!({"path": "x", "mode": "c"}),
                "one of \"a\", \"b\" is wanted",
            ),
            (
                json!({"path": "x", "pth": 1}),
                "there is no argument `pth`; there are `all`, `limit`",
            ),
            (json!({"path": null}), "`path` is null"),
        ] {
            let told = check(&schema(), &bad).unwrap_err();
            assert!(told.contains(said), "{bad}: {told}");
        }
        let told = check(&schema(), &json!({"limit": 0, "x": 1})).unwrap_err();
        assert_eq!(told.lines().count(), 3, "{told}");
    }
}
