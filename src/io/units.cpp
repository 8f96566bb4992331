#include "io/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <span>

#include "core/check.h"

namespace longnet {
namespace {

struct Suffix {
  std::string_view text;
  double factor;
};

// "12.5 GiB" -> 12.5 x the factor of "GiB". Nothing without a number >= 0, or with another suffix.
std::optional<double> scaled(std::string_view text, std::span<const Suffix> suffixes) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  std::string_view rest = text.substr(size_t(end - text.data()));
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  const auto suffix = std::ranges::find(suffixes, rest, &Suffix::text);
  if (suffix == suffixes.end()) return std::nullopt;
  return number * suffix->factor;
}

std::string print(const char* format, double value) {
  std::array<char, 64> buffer{};
  const int n = std::snprintf(buffer.data(), buffer.size(), format, value);
  return std::string(buffer.data(), size_t(std::max(0, n)));
}

// Three significant digits without an exponent, for values from 1 to 1000.
std::string three_digits(double value) {
  std::string text = print(value < 9.995 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f", value);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

// Three digits at most: takes the next of `prefixes`, each `base` times the one before, while the
// number would round to 1000 or more.
std::string with_prefix(double value, double base, std::span<const char* const> prefixes,
                        std::string_view unit) {
  if (!std::isfinite(value)) return "-";
  size_t prefix = 0;
  double magnitude = std::abs(value);
  for (; magnitude >= 999.5 && prefix + 1 < prefixes.size(); ++prefix) magnitude /= base;
  return concat(value < 0 ? "-" : "", three_digits(magnitude), " ", prefixes[prefix], unit);
}

std::string utc(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 64> buffer{};
  return std::string(buffer.data(), std::strftime(buffer.data(), buffer.size(), format, &parts));
}

}  // namespace

std::optional<int64_t> try_parse_tokens(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  const std::string_view suffix = text.substr(size_t(end - text.data()));
  if (suffix.empty()) return number;
  const size_t letter = std::string_view("kKmMbB").find(suffix[0]);
  if (suffix.size() != 1 || letter == std::string_view::npos) return std::nullopt;
  const int shift = 10 * (int(letter) / 2 + 1);
  if (number > (std::numeric_limits<int64_t>::max() >> shift)) return std::nullopt;
  return number << shift;
}

std::string format_tokens(int64_t tokens) {
  for (const auto& [shift, letter] : {std::pair(30, 'B'), std::pair(20, 'M'), std::pair(10, 'K')})
    if (tokens > 0 && tokens % (int64_t{1} << shift) == 0)
      return std::to_string(tokens >> shift) + letter;
  return std::to_string(tokens);
}

std::optional<int64_t> try_parse_bytes(std::string_view text) {
  static constexpr Suffix kSuffixes[]{
      {"", 1},      {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
      {"KB", 1e3},  {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TiB", 0x1p40},
      {"TB", 1e12}, {"PiB", 0x1p50}, {"PB", 1e15}};
  const std::optional<double> bytes = scaled(text, kSuffixes);
  if (!bytes || !(*bytes < 9e18)) return std::nullopt;
  return std::llround(*bytes);
}

std::string format_bytes(double bytes) {
  static constexpr const char* kPrefixes[]{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
  return with_prefix(bytes, 1024, kPrefixes, "B");
}

std::string format_seconds(double s) {
  if (!std::isfinite(s)) return "-";
  if (s < 0) return "-" + format_seconds(-s);
  if (s == 0) return "0 s";
  if (s < 999.5e-9) return three_digits(s * 1e9) + " ns";
  if (s < 999.5e-6) return three_digits(s * 1e6) + " us";
  if (s < 999.5e-3) return three_digits(s * 1e3) + " ms";
  if (s < 119.5) return three_digits(s) + " s";
  if (s >= 1e3 * 365.25 * 86400) return print("%.3g years", s / (365.25 * 86400));
  const auto whole = std::llround(s);
  if (whole < 7200) return concat(whole / 60, " min ", whole % 60, " s");
  if (whole < 172800) return concat(whole / 3600, " h ", whole % 3600 / 60, " min");
  return three_digits(s / 86400) + " days";
}

std::string format_si(double value, std::string_view unit) {
  static constexpr const char* kPrefixes[]{"", "k", "M", "G", "T", "P", "E", "Z", "Y"};
  return with_prefix(value, 1000, kPrefixes, unit);
}

double parse_duration(std::string_view text) {
  static constexpr Suffix kSuffixes[]{{"", 1},   {"s", 1},    {"ms", 1e-3},
                                      {"m", 60}, {"min", 60}, {"h", 3600}};
  if (const auto seconds = scaled(text, kSuffixes)) return *seconds;
  throw UsageError("'", text, "' is no duration: write 90s, 30m, 1.5h or 250ms");
}

double parse_fraction(std::string_view text) {
  static constexpr Suffix kSuffixes[]{{"", 1}, {"%", 1}};
  if (const auto number = scaled(text, kSuffixes))
    return text.ends_with('%') ? *number / 100 : *number;
  throw UsageError("'", text, "' is no fraction: write 5% or 0.05");
}

std::string utc_rfc3339() { return utc("%Y-%m-%dT%H:%M:%SZ"); }
std::string utc_compact() { return utc("%Y%m%dT%H%M%SZ"); }

}  // namespace longnet
