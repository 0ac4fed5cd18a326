//! Items on the command line: numbers, and ranges such as 10-19.

use crate::cli::failure::Failure;
use serde_json::{Value, json};
use std::io::Read;

/// How many numbers and ranges go out in one request.
const ENTRIES: usize = 10_000;

/// All items, cut into what one request takes.
pub(super) fn requests(arguments: &[String]) -> Result<Vec<Value>, Failure> {
    let words = words(arguments)?;
    let items: Vec<Value> = words.iter().map(|word| item(word)).collect::<Result<_, _>>()?;
    if items.is_empty() {
        return Err(Failure::usage("there are no items").remedy("give numbers or ranges, such as 3 10-19"));
    }
    Ok(items.chunks(ENTRIES).map(|items| json!({"items": items})).collect())
}

/// The arguments, or what standard input has if they are `-`.
fn words(arguments: &[String]) -> Result<Vec<String>, Failure> {
    if arguments != ["-"] {
        return Ok(arguments.to_vec());
    }
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

fn item(word: &str) -> Result<Value, Failure> {
    let wrong = || {
        Failure::usage(format!("{word:?} is not an item")).remedy("use a number, or a range such as 10-19")
    };
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    match word.split_once('-') {
        None => Ok(json!(number(word)?)),
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last)?);
            if first <= last { Ok(json!([first, last])) } else { Err(wrong()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_numbers_and_ranges() {
        let all = requests(&["3".to_owned(), "10-19".to_owned()]).unwrap();
        assert_eq!(all, [json!({"items": [3, [10, 19]]})]);
        for bad in ["x", "1-", "-1", "1-2-3", "", "19-10"] {
            assert!(requests(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn many_items_become_several_requests() {
        let many: Vec<String> = (0..ENTRIES + 1).map(|number| number.to_string()).collect();
        assert_eq!(requests(&many).unwrap().len(), 2);
    }
}
