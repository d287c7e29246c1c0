//! What an answer costs.

use longhaul_actors::session::payload::Usage;
use serde::{Deserialize, Serialize};

/// Prices of one model, in millionths of the account's currency for a million tokens of each kind:
/// 3 dollars are `3_000_000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Tokens read, that came from no cache and went to none.
    pub input_micros_per_mtok: u64,
    /// Tokens written.
    pub output_micros_per_mtok: u64,
    /// Tokens read from the provider's cache.
    pub cache_read_micros_per_mtok: u64,
    /// Tokens written to the provider's cache.
    pub cache_write_micros_per_mtok: u64,
}

impl Prices {
    /// The cost of this usage in millionths, rounded up once; saturates. What `usage` says about
    /// its own cost is not looked at.
    pub fn cost_micros(&self, usage: &Usage) -> u64 {
        let parts = [
            (usage.input_tokens, self.input_micros_per_mtok),
            (usage.output_tokens, self.output_micros_per_mtok),
            (usage.cache_read_tokens, self.cache_read_micros_per_mtok),
            (usage.cache_write_tokens, self.cache_write_micros_per_mtok),
        ];
        let sum = parts.into_iter().fold(0_u128, |sum, (tokens, price)| {
            sum.saturating_add(u128::from(tokens) * u128::from(price))
        });
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// This usage with its cost.
    #[must_use]
    pub fn priced(&self, usage: Usage) -> Usage {
        Usage {
            cost_micros: self.cost_micros(&usage),
            ..usage
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices {
        input_micros_per_mtok: 3_000_000,
        output_micros_per_mtok: 15_000_000,
        cache_read_micros_per_mtok: 300_000,
        cache_write_micros_per_mtok: 3_750_000,
    };

    #[test]
    fn each_kind_has_its_price_and_the_sum_is_rounded_up_once() {
        let usage = Usage {
            input_tokens: 1_000_000,
            output_tokens: 200_000,
            cache_read_tokens: 10_000_000,
            cache_write_tokens: 100_000,
            cost_micros: 7,
        };
        assert_eq!(PRICES.cost_micros(&usage), 3_000_000 * 3 + 375_000);
        assert_eq!(PRICES.priced(usage).cost_micros, 9_375_000);
        // 0.3 and 0.3 make 1, not 2.
        let two = Prices {
            input_micros_per_mtok: 300_000,
            output_micros_per_mtok: 300_000,
            ..Prices::default()
        };
        let one_each = Usage {
            input_tokens: 1,
            output_tokens: 1,
            ..Usage::default()
        };
        assert_eq!(two.cost_micros(&one_each), 1);
        assert_eq!(two.cost_micros(&Usage::default()), 0);
    }

    #[test]
    fn absurd_numbers_saturate() {
        let absurd = Prices {
            input_micros_per_mtok: u64::MAX,
            output_micros_per_mtok: u64::MAX,
            cache_read_micros_per_mtok: u64::MAX,
            cache_write_micros_per_mtok: u64::MAX,
        };
        let usage = Usage {
            input_tokens: u64::MAX,
            output_tokens: u64::MAX,
            cache_read_tokens: u64::MAX,
            cache_write_tokens: u64::MAX,
            cost_micros: 0,
        };
        assert_eq!(absurd.cost_micros(&usage), u64::MAX);
    }

    #[test]
    fn a_price_left_out_is_nothing_and_an_unknown_one_is_refused() {
        let read: Prices = serde_json::from_str(r#"{"output_micros_per_mtok": 5}"#).expect("reads");
        assert_eq!(read.output_micros_per_mtok, 5);
        assert_eq!(read.input_micros_per_mtok, 0);
        assert!(serde_json::from_str::<Prices>(r#"{"input": 5}"#).is_err());
    }
}
