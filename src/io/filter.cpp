#include "io/filter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <variant>

#include "core/check.h"
#include "io/units.h"
#include "json/text.h"

namespace longnet {

struct Filter::Expression {
  enum class Kind { kAnd, kOr, kNot, kCompare };
  enum class Op { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };
  Kind kind = Kind::kCompare;
  std::shared_ptr<const Expression> left, right;  // kNot has left only
  const Axis* axis = nullptr;                     // null: the id
  Op op = Op::kEqual;
  std::variant<double, std::string, bool> value{};
};

namespace {

// A condition without an axis is about the id.
Value value_of(const Axis* axis, const Point& p) {
  return axis ? axis->member.get(p.params) : p.id;
}

bool is_number(const Axis* axis) { return axis && std::holds_alternative<int64_t>(axis->standard); }
bool is_flag(const Axis* axis) { return axis && std::holds_alternative<bool>(axis->standard); }

using Op = Filter::Expression::Op;
constexpr std::array<const char*, 6> kOps{"==", "!=", "<", "<=", ">", ">="};

template <class T>
bool compare(Op op, const T& a, const T& b) {
  switch (op) {
    case Op::kEqual:
      return a == b;
    case Op::kNotEqual:
      return a != b;
    case Op::kLess:
      return a < b;
    case Op::kLessEqual:
      return a <= b;
    case Op::kGreater:
      return a > b;
    case Op::kGreaterEqual:
      return a >= b;
  }
  return false;
}

struct Token {
  enum class Kind { kWord, kQuoted, kSymbol, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;
  size_t at = 0;
};

using Node = std::shared_ptr<const Filter::Expression>;
using ExpressionKind = Filter::Expression::Kind;

// Recursive descent: or := and ('||' and)*; and := unary ('&&' unary)*; unary := '!' unary | '(' or
// ')' | compare.
class Parser {
 public:
  Parser(std::string_view text, const KnownNames& known) : text_(text), known_(known) { advance(); }

  Node parse() {
    Node root = parse_or();
    if (token_.kind != Token::Kind::kEnd)
      fail(token_.at, concat("expected && or ||, found '", token_.text, "'"),
           "put strings with blanks in quotes");
    return root;
  }

 private:
  static constexpr int kMaxDepth = 200;  // deeper input would only exhaust the stack

  [[noreturn]] void fail(size_t at, std::string_view what, std::string_view hint) const {
    throw UsageError(concat("filter, column ", at + 1, ": ", what, "\n    ", text_, "\n    ",
                            std::string(at, ' '), "^\n  hint: ", hint));
  }

  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-' || c == '+' || c == ':';
  }

  void advance() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n'))
      ++at_;
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

  static Node join(ExpressionKind kind, Node left, Node right) {
    Filter::Expression e;
    e.kind = kind;
    e.left = std::move(left);
    e.right = std::move(right);
    return std::make_shared<const Filter::Expression>(std::move(e));
  }

  Node parse_or() {
    Node left = parse_and();
    while (accept("||")) left = join(ExpressionKind::kOr, left, parse_and());
    return left;
  }

  Node parse_and() {
    Node left = parse_unary();
    while (accept("&&")) left = join(ExpressionKind::kAnd, left, parse_unary());
    return left;
  }

  Node parse_unary() {
    if (++depth_ > kMaxDepth) fail(token_.at, "nested too deeply", "simplify the condition");
    Node node;
    if (accept("!")) {
      node = join(ExpressionKind::kNot, parse_unary(), nullptr);
    } else if (const size_t open = token_.at; accept("(")) {
      node = parse_or();
      if (!accept(")")) fail(open, "this parenthesis is never closed", "add ) at the end");
    } else {
      node = parse_compare();
    }
    --depth_;
    return node;
  }

  Node parse_compare() {
    Filter::Expression e;
    if (token_.kind != Token::Kind::kWord)
      fail(token_.at,
           token_.kind == Token::Kind::kEnd ? "the text ends where a condition is expected"
                                            : concat("expected a key, found '", token_.text, "'"),
           "a condition is: key operator value, e.g. ranks > 4");
    const Token key = token_;
    e.axis = find_axis(key.text);
    if (!e.axis && key.text != "id")
      fail(key.at, concat("unknown key '", key.text, "'"), name_hint(key.text, filter_keys()));
    advance();
    size_t op = 0;
    while (op < kOps.size() && !(token_.kind == Token::Kind::kSymbol && token_.text == kOps[op]))
      ++op;
    if (op == kOps.size()) {
      if (!is_flag(e.axis))
        fail(token_.at, concat("expected an operator after '", key.text, "'"),
             "operators are == != < <= > >=");
      e.value = true;  // a flag alone
      return std::make_shared<const Filter::Expression>(std::move(e));
    }
    e.op = Op(op);
    if (!is_number(e.axis) && e.op != Op::kEqual && e.op != Op::kNotEqual)
      fail(token_.at, concat("'", key.text, "' is no number and has no order"), "use == or !=");
    advance();
    e.value = parse_value(e.axis, key.text);
    return std::make_shared<const Filter::Expression>(std::move(e));
  }

  std::variant<double, std::string, bool> parse_value(const Axis* axis, const std::string& key) {
    const Token t = token_;
    if (t.kind != Token::Kind::kWord && t.kind != Token::Kind::kQuoted)
      fail(t.at, concat("expected a value for '", key, "'"), "e.g. ranks > 4, algorithm == ring");
    advance();
    if (!is_number(axis) && !is_flag(axis)) {
      const auto words = axis ? known_.values_of(*axis) : std::vector<std::string>();
      if (!words.empty() && std::ranges::find(words, t.text) == words.end())
        fail(t.at, concat("no ", key, " is named '", t.text, "'"), name_hint(t.text, words));
      return t.text;
    }
    if (is_flag(axis)) {
      if (t.text != "true" && t.text != "false")
        fail(t.at, concat("'", key, "' is true or false, not '", t.text, "'"),
             "write true or false");
      return t.text == "true";
    }
    if (const auto tokens = try_parse_tokens(t.text)) return double(*tokens);
    double number = 0;
    const auto [end, error] = std::from_chars(t.text.data(), t.text.data() + t.text.size(), number);
    if (error != std::errc() || end != t.text.data() + t.text.size() || !std::isfinite(number))
      fail(t.at, concat("'", key, "' is a number, not '", t.text, "'"), "write 8192, 8K, 1M or 1B");
    return number;
  }

  std::string_view text_;
  const KnownNames& known_;
  size_t at_ = 0;
  int depth_ = 0;
  Token token_;
};

bool compare(const Filter::Expression& e, const Value& value) {
  if (const double* number = std::get_if<double>(&e.value))
    return compare(e.op, double(std::get<int64_t>(value)), *number);
  if (const bool* flag = std::get_if<bool>(&e.value))
    return compare(e.op, std::get<bool>(value), *flag);
  return compare(e.op, std::get<std::string>(value), std::get<std::string>(e.value));
}

bool evaluate(const Filter::Expression& e, const Point& p) {
  switch (e.kind) {
    case ExpressionKind::kAnd:
      return evaluate(*e.left, p) && evaluate(*e.right, p);
    case ExpressionKind::kOr:
      return evaluate(*e.left, p) || evaluate(*e.right, p);
    case ExpressionKind::kNot:
      return !evaluate(*e.left, p);
    case ExpressionKind::kCompare:
      return compare(e, value_of(e.axis, p));
  }
  return false;
}

std::string print(const Filter::Expression& e) {
  switch (e.kind) {
    case ExpressionKind::kAnd:
      return concat("(", print(*e.left), " && ", print(*e.right), ")");
    case ExpressionKind::kOr:
      return concat("(", print(*e.left), " || ", print(*e.right), ")");
    case ExpressionKind::kNot:
      return concat("!(", print(*e.left), ")");
    case ExpressionKind::kCompare:
      break;
  }
  std::string value;
  if (const double* number = std::get_if<double>(&e.value)) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), *number).ptr;
    value.assign(digits.data(), end);
  } else if (const bool* flag = std::get_if<bool>(&e.value)) {
    value = *flag ? "true" : "false";
  } else {
    const std::string& text = std::get<std::string>(e.value);
    const char quote = text.find('"') == std::string::npos ? '"' : '\'';
    value = quote + text + quote;
  }
  return concat(e.axis ? e.axis->key : "id", " ", kOps[size_t(e.op)], " ", value);
}

}  // namespace

Filter::Filter(std::string_view text, const KnownNames& known) {
  if (text.find_first_not_of(" \t\n") != std::string_view::npos)
    root_ = Parser(text, known).parse();
}

bool Filter::matches(const Point& point) const { return !root_ || evaluate(*root_, point); }

std::string Filter::to_string() const { return root_ ? print(*root_) : ""; }

std::vector<std::string> filter_keys() {
  std::vector<std::string> keys;
  for (const Axis& axis : axes()) keys.emplace_back(axis.key);
  keys.emplace_back("id");
  return keys;
}

}  // namespace longnet
