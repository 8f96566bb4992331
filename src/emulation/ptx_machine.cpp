#include "emulation/ptx_machine.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "emulation/ptx_block.h"
#include "emulation/ptx_instructions.h"

namespace longnet {
namespace {

using namespace ptx;

constexpr int kQuantum = 20000;  // instructions of a warp before the next one has its turn

// Gives the warps of a block their turns, and their lanes.
class BlockRun {
 public:
  BlockRun(const PtxKernel& kernel, const PtxLaunch& launch, const std::byte* parameters,
           unsigned number)
      : kernel_(kernel), launch_(launch), block_(kernel, launch, parameters, number) {}

  void run() {
    const int count = int(block_.warps().size());
    for (;;) {
      const int64_t before = block_.events();
      bool any = false;
      for (int i = 0; i < count; ++i) {
        Warp& warp = block_.warps()[size_t(launch_.order.warps_backwards ? count - 1 - i : i)];
        if (warp.live == 0 || warp.blocked) continue;
        any = true;
        run(warp);
      }
      if (!any && std::all_of(block_.warps().begin(), block_.warps().end(),
                              [](const Warp& w) { return w.live == 0; }))
        break;
      check(block_.events() != before, "PTX: ", kernel_.name, " makes no progress: ", where());
    }
    block_.require_all_done(kernel_.name);
  }

 private:
  std::string where() {
    std::string text;
    for (const Warp& w : block_.warps()) {
      if (w.live == 0) continue;
      const auto& in = kernel_.instructions[size_t(w.stopped_at)];
      text += concat(text.empty() ? "" : ", ", "warp ", w.index, " at line ", in.line, " (", in.op,
                     ")");
    }
    return text;
  }

  // Lanes that stand at the lowest place, and may go on.
  uint32_t choose(Warp& warp, int32_t& at) const {
    uint32_t free = warp.live & ~warp.waiting;
    if (free == 0) {  // others may have ended since: do all that are left wait for the same?
      const int32_t first = warp.pc[size_t(std::countr_zero(warp.live))];
      uint32_t same = 0;
      for_lanes(warp.live, [&](int l) { same |= uint32_t(warp.pc[size_t(l)] == first) << l; });
      if (same == warp.live) free = warp.live;
    }
    if (free == 0)
      throw Error(concat("PTX: ", kernel_.name, ": lanes of warp ", warp.index,
                         " wait for each other at different instructions"));
    at = std::numeric_limits<int32_t>::max();
    for_lanes(free, [&](int l) { at = std::min(at, warp.pc[size_t(l)]); });
    uint32_t group = 0;
    for_lanes(warp.live, [&](int l) { group |= uint32_t(warp.pc[size_t(l)] == at) << l; });
    return group;
  }

  void run(Warp& warp) {
    int32_t at = 0;
    uint32_t group = choose(warp, at);
    const auto leave = [&] { for_lanes(group, [&](int l) { warp.pc[size_t(l)] = at; }); };
    for (int steps = 0; steps < kQuantum; ++steps) {
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
        leave();
        warp.waiting |= group;
        group = choose(warp, at);
        continue;
      }
      warp.waiting &= ~group;
      if (in.rule->kind == Rule::Kind::kBranch) {
        if (active == group) {
          at = in.target;
          if (group == warp.live) continue;
        } else if (active == 0) {
          ++at;
          if (group == warp.live) continue;
        } else {
          for_lanes(group & ~active, [&](int l) { warp.pc[size_t(l)] = at + 1; });
          for_lanes(active, [&](int l) { warp.pc[size_t(l)] = in.target; });
          group = choose(warp, at);
          continue;
        }
        leave();
        group = choose(warp, at);
        continue;
      }
      if (in.rule->kind == Rule::Kind::kReturn) {
        at += 1;
        leave();
        warp.live &= ~active;
        ++block_.events();
        if (warp.live == 0) return;
        group = choose(warp, at);
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
      if (block_.take_yield() || warp.blocked) {
        warp.stopped_at = at - 1;
        leave();
        return;
      }
      if (group != warp.live) {  // others may stand there already
        leave();
        group = choose(warp, at);
      }
    }
    ++block_.events();  // still busy
    leave();
  }

  const PtxKernel& kernel_;
  const PtxLaunch& launch_;
  Block block_;
};

}  // namespace

void PtxMachine::load(std::string_view text) {
  for (auto& [name, kernel] : parse_ptx(text)) {
    for (PtxInstruction& in : kernel.instructions) in.rule = &ptx::rule_of(in);
    kernels_[name] = std::move(kernel);
  }
}

const PtxKernel& PtxMachine::kernel(const std::string& name) const {
  const auto found = kernels_.find(name);
  check(found != kernels_.end(), "no PTX of kernel ", name);
  return found->second;
}

std::vector<std::byte> PtxMachine::gather(const PtxKernel& kernel, void* const* arguments) {
  std::vector<std::byte> all(static_cast<size_t>(kernel.parameter_bytes));
  for (size_t i = 0; i < kernel.parameters.size(); ++i)
    std::memcpy(all.data() + kernel.parameters[i].at, arguments[i],
                size_t(kernel.parameters[i].bytes));
  return all;
}

void PtxMachine::launch(const PtxKernel& kernel, const PtxLaunch& launch,
                        std::span<const std::byte> parameters) const {
  check(launch.grid > 0 && launch.block > 0, "a launch of nothing");
  check(kernel.threads == 0 || int(launch.block) <= kernel.threads, "PTX: ", kernel.name, " takes ",
        kernel.threads, " threads, not ", launch.block);
  check(int64_t(parameters.size()) == kernel.parameter_bytes, "PTX: parameters of ",
        parameters.size(), " bytes, not ", kernel.parameter_bytes);
  // Aligned as the device does it.
  std::vector<std::max_align_t> aligned(parameters.size() / sizeof(std::max_align_t) + 1);
  std::memcpy(aligned.data(), parameters.data(), parameters.size());
  for (unsigned block = 0; block < launch.grid; ++block)
    BlockRun(kernel, launch, reinterpret_cast<const std::byte*>(aligned.data()), block).run();
}

}  // namespace longnet
