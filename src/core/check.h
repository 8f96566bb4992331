// Errors and the checks that raise them.
//
//   check(rows >= 0, "rows = ", rows);      throws Error: "rows = -3 (src/…/x.cpp:17)"
//
// Every failure carries the values that broke the condition. Its rank is added where that is known:
// by run_on_threads (comm/threads) for ranks that are threads, and in main for processes.
#pragma once
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace longnet {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  static_cast<void>((out << ... << parts));
  return out.str();
}

template <class Words>
std::string join(const Words& words, std::string_view separator) {
  std::string text;
  std::string_view between;
  for (const auto& word : words) {
    text.append(between).append(word);
    between = separator;
  }
  return text;
}

// A broken internal rule or a failed library call: a bug, or a machine that misbehaves. Its text is
// the parts behind each other, as of UsageError.
class Error : public std::runtime_error {
 public:
  template <class... Parts>
  explicit Error(const Parts&... parts) : std::runtime_error(concat(parts...)) {}
};

// A request of the user that cannot be done: shown without a source location, exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A text and the place in the source where it stands, so that `check` needs no macro.
struct Located {
  std::string_view text;
  std::source_location where;
  // NOLINTNEXTLINE: implicit
  Located(const char* t, std::source_location w = std::source_location::current())
      : text(t), where(w) {}
};

[[noreturn]] inline void fail_at(const std::string& message, std::source_location where) {
  std::string_view file = where.file_name();
  if (const auto src = file.rfind("/src/"); src != std::string_view::npos)
    file.remove_prefix(src + 1);
  throw Error(message, " (", file, ':', where.line(), ')');
}

// Throws Error with `what` followed by `values` when `ok` is false.
template <class... Values>
void check(bool ok, Located what, const Values&... values) {
  if (ok) [[likely]]
    return;
  fail_at(concat(what.text, values...), what.where);
}

}  // namespace longnet
