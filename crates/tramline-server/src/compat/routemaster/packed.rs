//! How large JSON is as MessagePack, by which Routemaster limits what an event may carry.

use serde_json::{Number, Value};

/// The size of a value as MessagePack, in bytes.
pub(super) fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 1,
        Value::Number(number) => of_number(number),
        Value::String(text) => of_text(text),
        Value::Array(items) => of_count(items.len()) + items.iter().map(size).sum::<usize>(),
        Value::Object(fields) => {
            let fields_size = |(name, value): (&String, &Value)| of_text(name) + size(value);
            of_count(fields.len()) + fields.iter().map(fields_size).sum::<usize>()
        }
    }
}

fn of_number(number: &Number) -> usize {
    match (number.as_u64(), number.as_i64()) {
        (Some(0..=0x7f), _) | (_, Some(-32..0)) => 1,
        (Some(0x80..=0xff), _) | (_, Some(-0x80..0)) => 2,
        (Some(0x100..=0xffff), _) | (_, Some(-0x8000..0)) => 3,
        (Some(0x1_0000..=0xffff_ffff), _) | (_, Some(-0x8000_0000..0)) => 5,
        _ => 9,
    }
}

fn of_text(text: &str) -> usize {
    let head = match text.len() {
        0..=31 => 1,
        32..=0xff => 2,
        0x100..=0xffff => 3,
        _ => 5,
    };
    head + text.len()
}

/// What it takes to say how many items or fields follow.
fn of_count(count: usize) -> usize {
    match count {
        0..=15 => 1,
        16..=0xffff => 3,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_have_the_size_that_message_pack_gives_them() {
        for (value, bytes) in [
            (json!({}), 1),
            (json!({"a": null, "b": true}), 7),
            (json!([0, 127, -1, -32]), 5),
            (json!([128, 255, -33, -128]), 9),
            (json!([256, 65_535, -129, -32_768]), 13),
            (json!([65_536, -32_769, 4_294_967_296_i64, -2_147_483_649_i64]), 29),
            (json!({"lat": 45.188_272_8, "lon": 5.723_756}), 27),
            (json!("x".repeat(31)), 32),
            (json!("x".repeat(32)), 34),
            (json!("x".repeat(256)), 259),
            (json!(vec![0; 16]), 19),
        ] {
            assert_eq!(size(&value), bytes, "{value}");
        }
    }
}
