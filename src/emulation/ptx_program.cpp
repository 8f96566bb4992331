#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <ranges>
#include <tuple>

#include "core/check.h"
#include "emulation/ptx_machine.h"

namespace longnet {
namespace {

constexpr int kLanes = 32;

// "f32", "b8", "pred"; nothing for words that are no types.
std::optional<PtxType> type_of(std::string_view word) {
  if (word == "pred") return PtxType{.kind = 'p'};
  if (word.empty() || std::string_view("usfb").find(word[0]) == std::string_view::npos) return {};
  for (int bytes = 1; bytes <= 8; bytes *= 2)
    if (word.substr(1) == std::to_string(8 * bytes))
      return PtxType{.kind = word[0] == 'b' ? 'u' : word[0], .bytes = bytes};
  return {};
}

constexpr std::string_view kSpaces = " \t\r\n";
std::string_view trim(std::string_view s) {
  const size_t first = std::min(s.find_first_not_of(kSpaces), s.size());
  return s.substr(first, s.find_last_not_of(kSpaces) + 1 - first);
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  for (const auto part : std::views::split(text, at)) parts.emplace_back(part.begin(), part.end());
  return parts;
}

// Splits at commas outside of brackets and braces.
std::vector<std::string_view> split_operands(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c != ',' || depth > 0) continue;
    parts.push_back(trim(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  if (!trim(text).empty()) parts.push_back(trim(text.substr(begin)));
  return parts;
}

int64_t number_behind(std::string_view text, std::string_view word, int64_t other) {
  const size_t at = text.find(word);
  return at == std::string_view::npos
             ? other
             : std::atoll(std::string(text.substr(at + word.size())).c_str());
}

class KernelParser {
 public:
  KernelParser(std::string_view header, std::string_view body, int line,
               const std::map<std::string, int64_t>& extern_shared)
      : line_(line) {
    for (const auto& [name, alignment] : extern_shared)
      symbols_[name] = {PtxConstant::Kind::kDynamicShared, uint64_t(alignment)};
    read_header(header);
    read_body(body);
    for (auto& [instruction, label] : branches_) {
      const auto found = labels_.find(label);
      check(found != labels_.end(), "PTX: no label ", label);
      kernel_.instructions[instruction].target = found->second;
    }
    kernel_.register_bytes = next_row_;
  }
  PtxKernel take() { return std::move(kernel_); }

 private:
  [[noreturn]] void refuse(std::string_view what, std::string_view text) const {
    throw Error(concat("PTX line ", line_, ": ", what, " '", text, "'"));
  }

  void read_header(std::string_view header) {
    const size_t open = header.find('(');
    kernel_.name = trim(header.substr(0, open));
    const size_t close = header.find(')');
    kernel_.threads = int(number_behind(header, ".maxntid", 0));
    for (const std::string_view parameter :
         split_operands(header.substr(open + 1, close - open - 1))) {
      const auto [name, bytes, alignment] = variable(parameter);
      const uint64_t at = reserve(kernel_.parameter_bytes, bytes, alignment);
      kernel_.parameters.push_back({int64_t(at), bytes});
      symbols_[name] = {PtxConstant::Kind::kParam, at};
    }
  }

  // Returns the first of `bytes` behind the `used` ones, which grow by them.
  static uint64_t reserve(int64_t& used, int64_t bytes, int64_t alignment) {
    const int64_t at = (used + alignment - 1) / alignment * alignment;
    used = at + bytes;
    return uint64_t(at);
  }

  // ".param .align 8 .b8 name[40]" -> name, bytes, alignment
  std::tuple<std::string, int64_t, int64_t> variable(std::string_view text) const {
    const size_t at = text.find_last_of(" \t");
    std::string name(trim(text.substr(at)));
    int64_t count = 1;
    if (const size_t bracket = name.find('['); bracket != std::string::npos) {
      count = std::atoll(name.c_str() + bracket + 1);
      name.resize(bracket);
    }
    for (const std::string& word : split(text.substr(0, at), '.'))
      if (const auto type = type_of(trim(word)))
        return {name, count * type->bytes, number_behind(text, ".align", type->bytes)};
    refuse("no type in", text);
  }

  void read_body(std::string_view body) {
    size_t begin = 0;
    int depth = 0;
    const auto statement = [&](size_t end) { return trim(body.substr(begin, end - begin)); };
    for (size_t i = 0; i < body.size(); ++i) {
      const char c = body[i];
      if (c == '\n') ++line_;
      const bool starts = statement(i).empty();
      if (c == '{' && starts) {
        scopes_.emplace_back();
        begin = i + 1;
      } else if (c == '}' && starts && depth == 0) {
        scopes_.pop_back();
        begin = i + 1;
      } else if (c == '{') {
        ++depth;
      } else if (c == '}') {
        --depth;
      } else if (c == ';') {
        read_statement(statement(i));
        begin = i + 1;
      } else if (c == ':' && is_label(statement(i))) {
        const bool fresh =
            labels_.insert({std::string(statement(i)), int32_t(kernel_.instructions.size())})
                .second;
        if (!fresh) refuse("a second label", statement(i));
        begin = i + 1;
      }
    }
  }
  static bool is_label(std::string_view text) {
    return text.starts_with('$') && text.find_first_of(kSpaces) == text.npos;
  }

  void read_statement(std::string_view text) {
    if (text.empty() || text.starts_with(".pragma")) return;
    if (text.starts_with(".reg")) return declare_registers(text);
    if (text.starts_with(".shared")) {
      const auto [name, bytes, alignment] = variable(text);
      const uint64_t at = reserve(kernel_.shared_bytes, bytes, alignment);
      symbols_[name] = {PtxConstant::Kind::kValue, at};
      return;
    }
    if (text.front() == '.') refuse("unknown directive", text);
    read_instruction(text);
  }

  void declare_registers(std::string_view text) {
    // ".reg .b32 %r<10>" or ".reg .pred p"
    const auto words = split_operands(text.substr(text.find_last_of(" \t") + 1));
    const size_t dot = text.find('.', 1);
    const std::string_view type =
        trim(text.substr(dot + 1, text.find_first_of(" \t", dot) - dot - 1));
    const auto found = type_of(type);
    if (!found) refuse("unknown type of a register", text);
    const int bytes = found->kind == 'p' ? 0 : width(*found);
    for (const std::string_view word : words) {
      const size_t many = word.find('<');
      if (many == std::string_view::npos) {
        scopes_.back()[std::string(word)] = new_row(bytes);
      } else {
        families_[std::string(word.substr(0, many))] = bytes;
      }
    }
  }

  PtxRow new_row(int bytes) {
    const PtxRow row{int32_t(next_row_), uint8_t(bytes)};
    next_row_ += bytes == 0 ? 4 : kLanes * bytes;
    next_row_ = (next_row_ + 31) / 32 * 32;
    return row;
  }

  PtxRow constant(PtxConstant::Kind kind, uint64_t value, int bytes) {
    for (const PtxConstant& c : kernel_.constants)
      if (c.kind == kind && c.value == value && c.row.bytes == bytes) return c.row;
    kernel_.constants.push_back({kind, value, new_row(bytes)});
    return kernel_.constants.back().row;
  }

  static bool is_number(std::string_view text) {
    const char c = text.front() == '-' && text.size() > 1 ? text[1] : text.front();
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  }
  static uint64_t number(std::string_view text) {
    const bool real = text.starts_with("0f") || text.starts_with("0d");
    return std::strtoull(std::string(text.substr(real ? 2 : 0)).c_str(), nullptr, real ? 16 : 0);
  }

  // `bytes`: of an immediate's lane; 0: a predicate.
  PtxRow row_of(std::string_view name, int bytes) {
    using Kind = PtxConstant::Kind;
    if (name == "_") return {};
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(std::string(name)); found != scope->end())
        return found->second;
    if (is_number(name)) return constant(Kind::kValue, number(name), bytes);
    if (const auto found = symbols_.find(std::string(name)); found != symbols_.end()) {
      const auto [kind, value] = found->second;
      if (kind == Kind::kDynamicShared) kernel_.dynamic_alignment = int64_t(value);
      return constant(kind, value, kind == Kind::kParam ? 8 : std::max(4, bytes));
    }
    if (name.front() == '%') {
      size_t digits = name.size();
      while (digits > 1 && std::isdigit(static_cast<unsigned char>(name[digits - 1])) != 0)
        --digits;
      const auto family = families_.find(std::string(name.substr(0, digits)));
      if (family != families_.end())
        return scopes_.front()[std::string(name)] = new_row(family->second);
    }
    refuse("unknown operand", name);
  }

  PtxOperand operand(std::string_view text, int bytes) {
    PtxOperand out;
    if (text.empty()) refuse("an operand is missing", text);
    if (text.front() == '{') {
      for (const std::string_view part : split_operands(text.substr(1, text.size() - 2)))
        out.parts.push_back(operand(part, bytes));
      return out;
    }
    if (text.front() == '[') {
      const auto inside = split_operands(text.substr(1, text.size() - 2));
      const size_t plus = inside.at(0).find('+');  // "%rd6+-4", "name+16", "%r1"
      if (plus != std::string_view::npos)
        out.offset = int64_t(number(trim(inside[0].substr(plus + 1))));
      out.row = row_of(trim(inside[0].substr(0, plus)), 8);
      for (size_t i = 1; i < inside.size(); ++i) {
        const PtxOperand more = operand(inside[i], 4);
        out.parts.insert(out.parts.end(), more.parts.begin(), more.parts.end());
      }
      return out;
    }
    out.negated = text.front() == '!';
    if (out.negated) text.remove_prefix(1);
    out.row = row_of(text, bytes);
    return out;
  }

  void read_instruction(std::string_view text) {
    PtxInstruction in;
    in.line = line_;
    if (text.front() == '@') {
      const size_t end = text.find_first_of(" \t");
      in.guard_negated = text[1] == '!';
      in.guard = row_of(text.substr(in.guard_negated ? 2 : 1, end - (in.guard_negated ? 2 : 1)), 0);
      text = trim(text.substr(end));
    }
    const size_t end = std::min(text.find_first_of(" \t\n"), text.size());
    in.op = text.substr(0, end);
    in.words = split(in.op, '.');
    std::vector<PtxType> types;
    for (const std::string& word : in.words) {
      if (const auto type = type_of(word)) types.push_back(*type);
      if (word == "global") in.space = PtxSpace::kGlobal;
      if (word.starts_with("shared")) in.space = PtxSpace::kShared;
      if (word == "param") in.space = PtxSpace::kParam;
      if (word == "v2") in.vector = 2;
      if (word == "v4") in.vector = 4;
    }
    if (!types.empty()) in.type = in.from = types.back();
    if (types.size() > 1) in.type = types[types.size() - 2];
    std::string_view rest = trim(text.substr(end));
    if (in.words[0] == "bra") {
      branches_.emplace_back(kernel_.instructions.size(), std::string(rest));
      rest = {};
    }
    const auto parts = split_operands(rest);
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string_view part = parts[i];
      if (const size_t bar = part.find('|'); bar != std::string_view::npos) {
        in.second = row_of(part.substr(bar + 1), 0);
        part = part.substr(0, bar);
      }
      in.operands.push_back(operand(part, bytes_of_operand(in, i)));
    }
    kernel_.instructions.push_back(std::move(in));
  }

  // Returns the bytes that a lane of operand `i` takes if the operand is an immediate.
  static int bytes_of_operand(const PtxInstruction& in, size_t i) {
    const std::string& name = in.words[0];
    if (in.type.kind == 'p' && name != "vote") return 0;
    if (name == "shl" || name == "shr") return i == 2 ? 4 : width(in.type);
    if (name == "wgmma" || name == "bfi" || name == "shfl" || name == "vote") return 4;
    if (in.words.size() > 1 && in.words[1] == "wide") return i == 0 ? 8 : width(in.type);
    if (name == "cp" || name == "mbarrier" || name == "bar" || name == "barrier" || name == "fence")
      return 4;
    return width(in.from);
  }
  static int width(PtxType type) { return std::max(4, type.bytes); }

  PtxKernel kernel_;
  int line_;
  int64_t next_row_ = 0;
  std::map<std::string, std::pair<PtxConstant::Kind, uint64_t>> symbols_{
      {"%tid.x", {PtxConstant::Kind::kTidX, 0}},
      {"%ctaid.x", {PtxConstant::Kind::kCtaidX, 0}},
      {"%nctaid.x", {PtxConstant::Kind::kNctaidX, 0}}};
  std::map<std::string, int> families_;
  std::vector<std::map<std::string, PtxRow>> scopes_{1};  // the kernel's own first
  std::map<std::string, int32_t> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
};

}  // namespace

std::map<std::string, PtxKernel> parse_ptx(std::string_view all) {
  std::map<std::string, PtxKernel> kernels;
  std::map<std::string, int64_t> dynamic;
  const std::string_view kExtern = ".extern .shared", kEntry = ".entry";
  for (size_t at = 0; (at = all.find(kExtern, at)) != std::string_view::npos; ++at) {
    const std::string_view line = all.substr(at, all.find(';', at) - at);
    const size_t name = line.find_last_of(" \t") + 1;
    dynamic[std::string(line.substr(name, line.find('[', name) - name))] =
        number_behind(line, ".align", 16);
  }
  for (size_t at = 0; (at = all.find(kEntry, at)) != std::string_view::npos;) {
    const size_t open = all.find('{', at);
    size_t close = open;
    for (int depth = 0; close < all.size(); ++close) {
      depth += all[close] == '{' ? 1 : all[close] == '}' ? -1 : 0;
      if (depth == 0) break;
    }
    const int line = 1 + int(std::count(all.begin(), all.begin() + ptrdiff_t(open), '\n'));
    PtxKernel kernel = KernelParser(all.substr(at + kEntry.size(), open - at - kEntry.size()),
                                    all.substr(open + 1, close - open - 1), line, dynamic)
                           .take();
    const std::string name = kernel.name;
    kernels[name] = std::move(kernel);
    at = close;
  }
  return kernels;
}

}  // namespace longnet
