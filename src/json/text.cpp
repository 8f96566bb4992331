#include "json/text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace longnet {

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: three rows of the table are enough.
  std::vector<int> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = int(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = int(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      current[j] = std::min(
          {previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::string closest_match(std::string_view word, std::span<const std::string> candidates) {
  if (word.size() > 100) return "";  // no misspelt name
  // One error per three letters: 'sqe_len' finds seq_len, 'fp16' does not find fp32.
  int best = int(word.size()) / 3 + 1;
  std::string match;
  for (const std::string& c : candidates) {
    const int distance = edit_distance(word, c);
    const bool extends = word.size() >= 3 && (c.starts_with(word) || c.ends_with(word));
    if (distance < best || (match.empty() && extends)) {
      best = std::min(best, distance);
      match = c;
    }
  }
  return match;
}

std::string name_hint(std::string_view word, std::span<const std::string> candidates) {
  if (const std::string match = closest_match(word, candidates); !match.empty())
    return concat("did you mean '", match, "'?");
  return "known: " + join(candidates, ", ");
}

namespace {

// Bytes of the character that `text` begins with (not empty), 0 where it is no UTF-8.
size_t bytes_of_character(std::string_view text) {
  const auto at = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  const size_t bytes = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i)
    if ((at(i) & 0xC0) != 0x80) return 0;
  // Longer than it need be, a half of a surrogate pair, beyond U+10FFFF.
  const bool wrong = (lead == 0xE0 && at(1) < 0xA0) || (lead == 0xED && at(1) >= 0xA0) ||
                     (lead == 0xF0 && at(1) < 0x90) || (lead == 0xF4 && at(1) >= 0x90);
  return wrong ? 0 : bytes;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t bytes = bytes_of_character(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool c1 = bytes == 2 && first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
    const bool c0 = first == 0x7F || (first < 0x20 && first != '\n' && first != '\t');
    shown += bytes == 0 || c0 || c1 ? "\uFFFD" : text.substr(0, bytes);
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return shown;
}

std::string to_hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

uint64_t from_hex(std::string_view text) {
  return std::strtoull(std::string(text).c_str(), nullptr, 16);
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "_@%+=:,./-";
  const auto is_plain = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != kPlain.npos;
  };
  if (!text.empty() && std::ranges::all_of(text, is_plain)) return std::string(text);
  std::string word = "'";
  for (const char c : text)
    if (c == '\'')
      word += "'\\''";
    else
      word += c;
  return word + "'";
}

std::string two_columns(std::span<const std::pair<std::string, std::string>> rows) {
  size_t width = 0;
  for (const auto& [name, meaning] : rows) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, meaning] : rows)
    text += concat("  ", name, std::string(width - name.size() + 2, ' '), meaning, "\n");
  return text;
}

std::string wrapped(std::string_view text, size_t width, std::string_view before,
                    std::string_view then) {
  std::string lines, line(before);
  bool empty = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (!empty && line.size() + end > width) {
      line.back() = '\n';
      lines += line;
      line = then;
    }
    line += concat(text.substr(0, end), " ");
    empty = false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (!line.empty()) line.pop_back();
  return lines + line;
}

}  // namespace longnet
