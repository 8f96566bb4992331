#include "emulation/ptx_machine.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <limits>
#include <utility>

#include "core/check.h"
#include "emulation/ptx_block.h"

namespace longnet {
namespace {

using namespace ptx;

const Rule* find_rule(const std::string& op) {
  const Rule* found = nullptr;
  for (const auto rules : {arithmetic_rules(), block_rules()})
    for (const Rule& rule : rules) {
      const size_t size = rule.name.size();
      const bool fits = op.starts_with(rule.name) && (op.size() == size || op[size] == '.');
      if (fits && (found == nullptr || found->name.size() < size)) found = &rule;
    }
  return found;
}

// True for types and modifiers that are done wherever they follow the first word of an instruction,
// where its rule names that word alone.
bool is_known_word(const std::string& word) {
  static const std::vector<std::string_view> known{
      "rn",  "lo",  "eq",  "ne",  "lt", "le", "gt",     "ge",     "to",    "equ", "neu",
      "ltu", "leu", "gtu", "geu", "v2", "v4", "global", "shared", "param", "uni", "pred"};
  const bool type = word.size() >= 2 && word.size() <= 4 &&
                    std::isdigit(static_cast<unsigned char>(word[1])) != 0;
  return type || std::ranges::find(known, word) != known.end();
}

// Throws Error with the line where the instruction, or a modifier of it, is not known here.
const Rule& rule_of(const PtxInstruction& in) {
  const auto refuse = [&](const auto&... what) {
    throw Error(concat("PTX line ", in.line, ": ", what...));
  };
  const Rule* const rule = find_rule(in.op);
  if (rule == nullptr) refuse("no instruction ", in.op);
  if (in.second.at >= 0 && rule->name != "shfl.sync") refuse("a second result of ", in.op);
  if (rule->name.find('.') == std::string_view::npos)
    for (size_t i = 1; i < in.words.size(); ++i)
      if (!is_known_word(in.words[i]))
        refuse("'", in.words[i], "' of ", in.op, " is not known here");
  return *rule;
}

constexpr int kQuantum = 20000;  // instructions of a warp before the next one has its turn

// Gives the warps of a block their turns, and their lanes.
class BlockRun {
 public:
  BlockRun(const PtxKernel& kernel, const PtxLaunch& launch, const std::byte* parameters,
           unsigned number)
      : block_(kernel, launch, parameters, number) {}

  void run() {
    const int count = int(block_.warps.size());
    for (;;) {
      const int64_t before = block_.events;
      bool any = false;
      for (int i = 0; i < count; ++i) {
        Warp& warp = block_.warps[size_t(block_.launch.order.warps_backwards ? count - 1 - i : i)];
        if (warp.live == 0 || warp.blocked) continue;
        any = true;
        run(warp);
      }
      if (!any && std::all_of(block_.warps.begin(), block_.warps.end(),
                              [](const Warp& w) { return w.live == 0; }))
        break;
      check(block_.events != before, "PTX: ", kernel_.name, " makes no progress: ", where());
    }
    block_.require_all_done();
  }

 private:
  std::string where() {
    std::string text;
    for (const Warp& w : block_.warps) {
      if (w.live == 0) continue;
      const auto& in = kernel_.instructions[size_t(w.stopped_at)];
      text += concat(text.empty() ? "" : ", ", "warp ", w.index, " at line ", in.line, " (", in.op,
                     ")");
    }
    return text;
  }

  // Returns the lanes that are at the lowest place and may go on.
  uint32_t choose(Warp& warp, int32_t& at) const {
    uint32_t free = warp.live & ~warp.waiting;
    if (free == 0) {  // others may have ended since: do all that are left wait for the same?
      const int32_t first = warp.pc[size_t(std::countr_zero(warp.live))];
      uint32_t same = 0;
      for_lanes(warp.live, [&](int l) { same |= uint32_t(warp.pc[size_t(l)] == first) << l; });
      if (same == warp.live) free = warp.live;
    }
    check(free != 0, "PTX: ", kernel_.name, ": lanes of warp ", warp.index,
          " wait for each other at different instructions");
    at = std::numeric_limits<int32_t>::max();
    for_lanes(free, [&](int l) { at = std::min(at, warp.pc[size_t(l)]); });
    uint32_t group = 0;
    for_lanes(warp.live, [&](int l) { group |= uint32_t(warp.pc[size_t(l)] == at) << l; });
    return group;
  }

  void run(Warp& warp) {
    int32_t at = 0;
    uint32_t group = 0;  // lanes at `at`; none: others are to be chosen
    const auto leave = [&] {
      for_lanes(std::exchange(group, 0), [&](int l) { warp.pc[size_t(l)] = at; });
    };
    for (int steps = 0; steps < kQuantum; ++steps) {
      if (group == 0) group = choose(warp, at);
      const PtxInstruction& in = kernel_.instructions[size_t(at)];
      uint32_t active = group;
      if (in.guard.at >= 0) {
        const uint32_t guard = warp.predicate(in.guard);
        active &= in.guard_negated ? ~guard : guard;
      }
      if (in.rule->whole_warp() && active != 0 && active != group)
        throw Error(concat("PTX: ", kernel_.name, ", line ", in.line, " (", in.op,
                           "): lanes of a warp do not agree whether to execute it"));
      if (in.rule->whole_warp() && group != warp.live) {
        warp.waiting |= group;
        leave();
        continue;
      }
      warp.waiting &= ~group;
      if (in.rule->kind == Rule::Kind::kBranch) {
        if (group == warp.live && (active == group || active == 0)) {
          at = active == 0 ? at + 1 : in.target;
          continue;
        }
        ++at;
        leave();
        for_lanes(active, [&](int l) { warp.pc[size_t(l)] = in.target; });
        continue;
      }
      if (in.rule->kind == Rule::Kind::kReturn) {
        ++at;
        leave();
        warp.live &= ~active;
        ++block_.events;
        if (warp.live == 0) return;
        continue;
      }
      try {
        ++warp.steps;
        if (active != 0) in.rule->execute(block_, warp, in, active);
        if (in.rule->kind != Rule::Kind::kProduct && !in.operands.empty())
          warp.note_write(in.operands[0]);
      } catch (const std::exception& e) {
        throw Error(concat("PTX: ", kernel_.name, ", warp ", warp.index, ", line ", in.line, " (",
                           in.op, "): ", e.what()));
      }
      ++at;
      if (std::exchange(block_.yields, false) || warp.blocked) {
        warp.stopped_at = at - 1;
        leave();
        return;
      }
      if (group != warp.live) leave();  // others may be there already
    }
    ++block_.events;  // still busy
    leave();
  }

  Block block_;
  const PtxKernel& kernel_ = block_.kernel;
};

}  // namespace

std::map<std::string, PtxKernel> load_ptx(std::string_view text) {
  auto kernels = parse_ptx(text);
  for (auto& [name, kernel] : kernels)
    for (PtxInstruction& in : kernel.instructions) in.rule = &rule_of(in);
  return kernels;
}

PtxParameters gather_parameters(const PtxKernel& kernel, void* const* arguments) {
  PtxParameters all(size_t(kernel.parameter_bytes) / sizeof(std::max_align_t) + 1);
  for (size_t i = 0; i < kernel.parameters.size(); ++i)
    std::memcpy(reinterpret_cast<std::byte*>(all.data()) + kernel.parameters[i].at, arguments[i],
                size_t(kernel.parameters[i].bytes));
  return all;
}

void launch_ptx(const PtxKernel& kernel, const PtxLaunch& launch, const PtxParameters& parameters) {
  check(launch.grid > 0 && launch.block > 0, "a launch of nothing");
  check(kernel.threads == 0 || int(launch.block) <= kernel.threads, "PTX: ", kernel.name, " takes ",
        kernel.threads, " threads, not ", launch.block);
  for (unsigned block = 0; block < launch.grid; ++block)
    BlockRun(kernel, launch, reinterpret_cast<const std::byte*>(parameters.data()), block).run();
}

}  // namespace longnet
