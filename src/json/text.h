// Small helpers for text: the nearest known word, hex numbers, columns, lines.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/enum_names.h"

namespace longnet {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
int edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `word` if it is near enough to be a typing error, else "".
std::string closest_match(std::string_view word, std::span<const std::string> candidates);

// "did you mean 'seq_len'?" or, where nothing is near, "known: a, b, c".
std::string name_hint(std::string_view word, std::span<const std::string> candidates);

// Throws UsageError on a name that the enum does not have.
template <HasTexts Enum>
Enum parse_enum(std::string_view name) {
  for (const Enum value : enum_values<Enum>())
    if (to_string(value) == name) return value;
  throw UsageError("unknown name '", name, "': ", name_hint(name, enum_names<Enum>()));
}
// Control characters, which a terminal would obey, and bytes that are no UTF-8 become U+FFFD;
// newline and tab stay.
std::string printable(std::string_view text);

// 16 hex digits, and back (0 when it is no hex number).
std::string to_hex(uint64_t value);
uint64_t from_hex(std::string_view text);

// `text` as one word of a POSIX shell, quoted where a shell would read more than the word.
std::string shell_word(std::string_view text);

// One indented line per (name, meaning), the meanings below each other.
std::string two_columns(std::span<const std::pair<std::string, std::string>> rows);

// The words of `text` on lines of at most `width` characters (a longer word has its own), the first
// line behind `before`, the others behind `then`.
std::string wrapped(std::string_view text, size_t width, std::string_view before = "",
                    std::string_view then = "");

}  // namespace longnet
