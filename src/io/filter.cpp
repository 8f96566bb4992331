#include "io/filter.h"

#include <algorithm>
#include <charconv>
#include <compare>

#include "core/check.h"
#include "io/units.h"
#include "json/text.h"

namespace longnet {
namespace {

// Compares a point's value with the value in the text.
using Comparison = std::function<std::partial_ordering(const Value&)>;

struct Operator {
  std::string_view text;
  bool (*holds)(std::partial_ordering);
};
constexpr Operator kOperators[] = {
    {"==", [](auto order) { return order == 0; }}, {"!=", [](auto order) { return order != 0; }},
    {"<", [](auto order) { return order < 0; }},   {"<=", [](auto order) { return order <= 0; }},
    {">", [](auto order) { return order > 0; }},   {">=", [](auto order) { return order >= 0; }}};

struct Token {
  enum class Kind { kWord, kQuoted, kSymbol, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;
  size_t at = 0;
};

// Recursive descent: or := and ('||' and)*; and := unary ('&&' unary)*; unary := '!' unary | '(' or
// ')' | compare.
class Parser {
 public:
  Parser(std::string_view text, const KnownNames& known) : text_(text), known_(known) { advance(); }

  Filter parse() {
    Filter root = parse_or();
    if (token_.kind != Token::Kind::kEnd)
      fail(token_.at, concat("expected && or ||, found '", token_.text, "'"),
           "put strings with blanks in quotes");
    return root;
  }

 private:
  static constexpr int kMaxDepth = 200;  // deeper input would only exhaust the stack

  [[noreturn]] void fail(size_t at, std::string_view what, std::string_view hint) const {
    throw UsageError("filter, column ", at + 1, ": ", what, "\n    ", text_, "\n    ",
                     std::string(at, ' '), "^\n  hint: ", hint);
  }

  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_.-+:").find(c) != std::string_view::npos;
  }

  void advance() {
    at_ = std::min(text_.find_first_not_of(" \t\n", at_), text_.size());
    token_ = {.text = {}, .at = at_};
    if (at_ == text_.size()) return;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return take_quoted(c);
    if (is_word(c)) {
      token_.kind = Token::Kind::kWord;
      while (at_ < text_.size() && is_word(text_[at_])) token_.text += text_[at_++];
      return;
    }
    token_.kind = Token::Kind::kSymbol;
    for (const char* symbol : {"&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")"})
      if (text_.substr(at_).starts_with(symbol)) {
        token_.text = symbol;
        at_ += token_.text.size();
        return;
      }
    fail(at_, concat("'", c, "' has no meaning here"),
         c == '='   ? "equality is =="
         : c == '&' ? "and is &&"
         : c == '|' ? "or is ||"
                    : "operators are == != < <= > >= && || ! ( )");
  }

  void take_quoted(char quote) {
    token_.kind = Token::Kind::kQuoted;
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos)
      fail(at_, "this quote is never closed", "add another at the end");
    token_.text = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
  }

  bool accept(std::string_view symbol) {
    if (token_.kind != Token::Kind::kSymbol || token_.text != symbol) return false;
    advance();
    return true;
  }

  Filter parse_or() {
    Filter left = parse_and();
    while (accept("||"))
      left = [left, right = parse_and()](const Point& p) { return left(p) || right(p); };
    return left;
  }

  Filter parse_and() {
    Filter left = parse_unary();
    while (accept("&&"))
      left = [left, right = parse_unary()](const Point& p) { return left(p) && right(p); };
    return left;
  }

  Filter parse_unary() {
    if (++depth_ > kMaxDepth) fail(token_.at, "nested too deeply", "simplify the condition");
    Filter condition;
    if (accept("!")) {
      condition = [negated = parse_unary()](const Point& p) { return !negated(p); };
    } else if (const size_t open = token_.at; accept("(")) {
      condition = parse_or();
      if (!accept(")")) fail(open, "this parenthesis is never closed", "add ) at the end");
    } else {
      condition = parse_compare();
    }
    --depth_;
    return condition;
  }

  Filter parse_compare() {
    if (token_.kind != Token::Kind::kWord)
      fail(token_.at,
           token_.kind == Token::Kind::kEnd ? "the text ends where a condition is expected"
                                            : concat("expected a key, found '", token_.text, "'"),
           "a condition is: key operator value, e.g. ranks > 4");
    const Token key = token_;
    const Axis* const axis = find_axis(key.text);  // null: the id
    if (!axis && key.text != "id")
      fail(key.at, concat("unknown key '", key.text, "'"), name_hint(key.text, filter_keys()));
    const Value standard = axis ? axis->standard : Value("");
    const auto value_of = [axis](const Point& p) {
      return axis ? axis->member.get(p.params) : Value(p.id);
    };
    advance();
    const auto* op = std::ranges::find(kOperators, token_.text, &Operator::text);
    if (token_.kind != Token::Kind::kSymbol || op == std::end(kOperators)) {
      if (!std::holds_alternative<bool>(standard))
        fail(token_.at, concat("expected an operator after '", key.text, "'"),
             "operators are == != < <= > >=");
      return [value_of](const Point& p) { return std::get<bool>(value_of(p)); };  // a flag alone
    }
    if (!std::holds_alternative<int64_t>(standard) && op->text != "==" && op->text != "!=")
      fail(token_.at, concat("'", key.text, "' is no number and has no order"), "use == or !=");
    advance();
    return [value_of, holds = op->holds, compare = parse_value(axis, standard, key.text)](
               const Point& p) { return holds(compare(value_of(p))); };
  }

  Comparison parse_value(const Axis* axis, const Value& standard, const std::string& key) {
    const Token t = token_;
    if (t.kind != Token::Kind::kWord && t.kind != Token::Kind::kQuoted)
      fail(t.at, concat("expected a value for '", key, "'"), "e.g. ranks > 4, algorithm == ring");
    advance();
    if (std::holds_alternative<std::string>(standard)) {
      const auto words = axis ? known_.values_of(*axis) : std::vector<std::string>();
      if (!words.empty() && std::ranges::find(words, t.text) == words.end())
        fail(t.at, concat("no ", key, " is named '", t.text, "'"), name_hint(t.text, words));
      return [text = t.text](const Value& v) { return std::get<std::string>(v) <=> text; };
    }
    if (std::holds_alternative<bool>(standard)) {
      if (t.text != "true" && t.text != "false")
        fail(t.at, concat("'", key, "' is true or false, not '", t.text, "'"),
             "write true or false");
      return [flag = t.text == "true"](const Value& v) { return std::get<bool>(v) <=> flag; };
    }
    double number = 0;
    const auto [end, error] = std::from_chars(t.text.data(), t.text.data() + t.text.size(), number);
    if (const auto tokens = try_parse_tokens(t.text))
      number = double(*tokens);
    else if (error != std::errc() || end != t.text.data() + t.text.size() || !std::isfinite(number))
      fail(t.at, concat("'", key, "' is a number, not '", t.text, "'"), "write 8192, 8K, 1M or 1B");
    return [number](const Value& v) { return double(std::get<int64_t>(v)) <=> number; };
  }

  std::string_view text_;
  const KnownNames& known_;
  size_t at_ = 0;
  int depth_ = 0;
  Token token_;
};

}  // namespace

Filter parse_filter(std::string_view text, const KnownNames& known) {
  if (text.find_first_not_of(" \t\n") == std::string_view::npos)
    return [](const Point&) { return true; };
  return Parser(text, known).parse();
}

std::vector<std::string> filter_keys() {
  std::vector<std::string> keys;
  for (const Axis& axis : axes()) keys.emplace_back(axis.key);
  keys.emplace_back("id");
  return keys;
}

}  // namespace longnet
