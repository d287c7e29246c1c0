//! What a server answered, as a model takes it: text, or JSON; of all else a note.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use crate::tool::ToolOutput;
use crate::tool::bound::{TEXT_BYTES_MAX, cut_middle};

/// The output of a call.
pub(super) fn output(result: CallToolResult) -> ToolOutput {
    let parts: Vec<String> = result.content.iter().map(part).collect();
    let output = match result.structured_content {
        // Servers repeat structured results as text; where not, the JSON is all there is.
        Some(json) if parts.is_empty() => bounded(json),
        _ => Value::String(cut_middle(parts.join("\n"))),
    };
    ToolOutput {
        output,
        is_error: result.is_error.unwrap_or(false),
        exit_code: None,
    }
}

fn bounded(json: Value) -> Value {
    let text = json.to_string();
    match text.len() > TEXT_BYTES_MAX {
        true => Value::String(cut_middle(text)),
        false => json,
    }
}

fn part(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => left_out("image", &image.mime_type, image.data.len()),
        ContentBlock::Audio(audio) => left_out("audio", &audio.mime_type, audio.data.len()),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("[{uri}]\n{text}"),
            ResourceContents::BlobResourceContents {
                uri,
                mime_type,
                blob,
                ..
            } => {
                let kind = mime_type.as_deref().unwrap_or("unknown type");
                format!("[{uri}]\n{}", left_out("data", kind, blob.len()))
            }
            _ => "[a resource that is not shown]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource {} at {}]", link.name, link.uri),
        _ => "[content of a kind that is not shown]".to_owned(),
    }
}

/// A note in place of data that came as base64.
fn left_out(what: &str, kind: &str, base64_bytes: usize) -> String {
    format!(
        "[{what} ({kind}, about {} bytes) is not shown]",
        base64_bytes / 4 * 3
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(result: Value) -> ToolOutput {
        output(serde_json::from_value(result).unwrap())
    }

    #[test]
    fn text_json_and_notes() {
        let text = told(json!({"content": [{"type": "text", "text": "a"},
            {"type": "image", "mimeType": "image/png", "data": "AAAAAAAA"},
            {"type": "resource_link", "uri": "file:///x", "name": "x"},
            {"type": "resource", "resource": {"uri": "u:t", "text": "t"}},
            {"type": "resource", "resource": {"uri": "u:b", "blob": "AAAA"}}]}));
        assert_eq!(
            text.output,
            "a\n[image (image/png, about 6 bytes) is not shown]\n[resource x at file:///x]\n[u:t]\nt\n\
             [u:b]\n[data (unknown type, about 3 bytes) is not shown]"
        );
        let json = told(json!({"content": [], "structuredContent": {"n": 1}}));
        assert_eq!((json.output, json.is_error), (json!({"n": 1}), false));
        let both = told(json!({"content": [{"type": "text", "text": "{\"n\":1}"}],
            "structuredContent": {"n": 1}, "isError": true}));
        assert_eq!((both.output, both.is_error), (json!("{\"n\":1}"), true));
    }

    #[test]
    fn floods_are_cut() {
        let long = "y".repeat(1 << 20);
        for result in [
            json!({"content": [{"type": "text", "text": long}]}),
            json!({"content": [], "structuredContent": {"a": long}}),
        ] {
            let text = told(result).output.as_str().unwrap().to_owned();
            assert!(text.len() < 66 << 10 && text.contains("bytes were cut out here"));
        }
    }
}
