// Numbers as people read and write them. Tokens and bytes count in powers of two, FLOPs in powers
// of ten.
//
//   "8K" tokens = 8192 = format_tokens(8192);  "1B" = 2^30;  format_bytes(1610612736) = "1.5 GiB".
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace longnet {

// "8192", "8K", "64k", "1M", "1B" (2^10, 2^20, 2^30). Nothing on anything else, overflow or < 0.
std::optional<int64_t> try_parse_tokens(std::string_view text);
// The shortest text that parses back to the same number: "8K", "1500", "1M".
std::string format_tokens(int64_t tokens);

// "4096", "8GiB", "1.5 GiB", "512 MiB", "10KiB"; KB, MB, GB, TB are powers of ten.
std::optional<int64_t> try_parse_bytes(std::string_view text);
std::string format_bytes(double bytes);  // "1.5 GiB", "512 B"
std::string format_seconds(double s);    // "1.23 ms", "4.5 s", "2 min 5 s"
// "1.2 T" + "FLOP/s": powers of ten with three digits.
std::string format_si(double value, std::string_view unit);
// "30m", "90s", "1.5h", "250ms", "45": seconds. For --max-time. Throws UsageError.
double parse_duration(std::string_view text);
double parse_fraction(std::string_view text);  // "5%" or "0.05"; throws UsageError

std::string utc_rfc3339();  // now: "2026-11-20T22:56:00Z"
std::string utc_compact();  // now: "20261120T225600Z", for names of folders

}  // namespace longnet
