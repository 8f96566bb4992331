#include "emulation/ptx_instructions.h"

#include <algorithm>
#include <cctype>

#include "core/check.h"
#include "emulation/ptx_block.h"

namespace longnet::ptx {
namespace {

const Rule* find_rule(const std::string& op) {
  const Rule* found = nullptr;
  for (const auto rules : {arithmetic_rules(), Block::rules()})
    for (const Rule& rule : rules) {
      const size_t size = rule.name.size();
      const bool fits = op.starts_with(rule.name) && (op.size() == size || op[size] == '.');
      if (fits && (found == nullptr || found->name.size() < size)) found = &rule;
    }
  return found;
}

// True for implemented types and modifiers, which may follow the first word of an instruction whose
// rule names that word alone.
bool is_known_word(const std::string& word) {
  static const std::vector<std::string_view> known{
      "rn",  "rm",     "lo",     "eq",    "ne",    "lt",  "le",  "gt", "ge",
      "to",  "equ",    "neu",    "ltu",   "leu",   "gtu", "geu", "v2", "v4",
      "sat", "global", "shared", "param", "local", "uni", "pred"};
  const bool type = word.size() >= 2 && word.size() <= 4 &&
                    std::isdigit(static_cast<unsigned char>(word[1])) != 0;
  return type || std::ranges::find(known, word) != known.end();
}

}  // namespace

const Rule& rule_of(const PtxInstruction& in) {
  const auto refuse = [&](const auto&... what) {
    throw Error(concat("PTX line ", in.line, ": ", what...));
  };
  const Rule* const rule = find_rule(in.op);
  if (rule == nullptr || (rule->execute == nullptr && rule->kind == Rule::Kind::kEachLane))
    refuse("no instruction ", in.op);
  const auto only = [&](std::string_view word, bool fits) {
    if (in.has(word) && !fits) refuse("'", word, "' of ", in.op, " is not done here");
  };
  only("rm", rule->name == "fma");
  only("sat", in.op == "cvt.sat.f32.f32");
  only("b64", rule->name != "bfi");
  only("f16", rule->name != "setp");
  if (in.second.at >= 0 && rule->name != "shfl.sync") refuse("a second result of ", in.op);
  if (rule->name == "vote.sync.any.pred" && in.operands.at(1).negated)
    refuse("a negated operand of ", in.op);
  if (rule->name.find('.') == std::string_view::npos)
    for (size_t i = 1; i < in.words.size(); ++i)
      if (!is_known_word(in.words[i]))
        refuse("'", in.words[i], "' of ", in.op, " is not known here");
  return *rule;
}

}  // namespace longnet::ptx
