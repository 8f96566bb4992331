// Errors and the checks that raise them.
//
//   check(rows >= 0, "rows = ", rows);      throws Error: "rows = -3 (src/…/x.cpp:17)"
//
// Every failure carries the values that broke the condition. The rank and host are added where they
// are known: at the border of a rank (execute/rank_runner) and in main.
#pragma once
#include <cstdint>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace longnet {

// A broken internal rule or a failed library call: a bug, or a machine that misbehaves.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a user wrote cannot be done: shown without a source location, exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A format string position and the place it came from, so that `check` needs no macro.
struct Located {
  std::string_view text;
  std::source_location where;
  Located(const char* t,
          std::source_location w = std::source_location::current())  // NOLINT: implicit
      : text(t), where(w) {}
};

[[noreturn]] void fail_at(std::string message, std::source_location where);

// Throws Error with `what` followed by `values` when `ok` is false.
template <class... Values>
void check(bool ok, Located what, const Values&... values) {
  if (ok) [[likely]]
    return;
  std::ostringstream out;
  out << what.text;
  static_cast<void>((out << ... << values));
  fail_at(out.str(), what.where);
}

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  static_cast<void>((out << ... << parts));
  return out.str();
}

}  // namespace longnet
