#include "schedule/program.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <sstream>
#include <utility>

#include "core/check.h"

namespace longnet {

OpId RankProgram::add(Action what, std::vector<OpId> after) {
  if (ops.size() >= kMostOps)
    throw UsageError("the program of a rank has more than ", kMostOps,
                     " ops: use fewer ranks or layers");
  ops.push_back({std::move(what), std::move(after)});
  return OpId(ops.size()) - 1;
}

bool RankProgram::is_input(int slot) const {
  if (has_layers(scope)) {
    const SlotTag tag = slots[size_t(slot)].tag;
    return tag == SlotTag::kTokens || tag == SlotTag::kWeights || tag == SlotTag::kOptimizer ||
           tag == SlotTag::kLayerInput;
  }
  return slot == kQuerySlot || slot == kKvSlot || (slot == kOutputSlot && !has_forward(pass)) ||
         (slot == kGradOutSlot && has_backward(pass)) ||
         std::ranges::any_of(kept, [&](const Kept& k) { return k.view.slot == slot; });
}

RankProgram one_after_the_other(RankProgram forward, RankProgram backward) {
  const auto ops = OpId(forward.ops.size());
  const int shared = int(backward.slots.size());  // or of the backward pass alone
  std::vector<int> place(forward.slots.size(), -1);
  for (const int slot : {kQuerySlot, kKvSlot, kOutputSlot}) place[size_t(slot)] = slot;
  for (const Kept& kept : backward.kept) place[size_t(kept.forward)] = kept.view.slot;
  for (size_t slot = 0; slot < place.size(); ++slot)
    if (place[slot] < 0) {
      place[slot] = int(backward.slots.size());
      backward.slots.push_back(forward.slots[slot]);
    }
  std::map<int, std::vector<OpId>> makers;  // forward ops, by the slot that the backward pass reads
  for (OpId i = 0; i < ops; ++i)
    for_each_view(forward.ops[size_t(i)].what, [&](SlotView& view, bool) {
      view.slot = place[size_t(view.slot)];
      if (view.slot > kKvSlot && view.slot < shared) makers[view.slot].push_back(i);
    });
  for (Op& op : backward.ops) {
    for (OpId& a : op.after) a += ops;
    for_each_view(std::as_const(op.what), [&](const SlotView& view, bool) {
      const std::vector<OpId>& before = makers[view.slot];
      op.after.insert(op.after.end(), before.begin(), before.end());
    });
  }
  backward.ops.insert(backward.ops.begin(), std::make_move_iterator(forward.ops.begin()),
                      std::make_move_iterator(forward.ops.end()));
  backward.kept.clear();
  backward.pass = Pass::kForwardBackward;
  return backward;
}

bool RankProgram::output_is_partial() const {
  if (!has_forward(pass))  // a backward pass keeps what the output lacks
    return std::ranges::none_of(
        kept, [&](const Kept& k) { return holds_o(slots[size_t(k.view.slot)].kind); });
  return std::ranges::none_of(ops, [&](const Op& op) {
    const auto* pack = std::get_if<Pack>(&op.what);
    return pack != nullptr && pack->into.slot == kOutputSlot &&
           slots[size_t(pack->from.slot)].kind == TensorKind::kResult;
  });
}

std::map<std::string, int64_t> RankProgram::memory_by_tag(int64_t align) const {
  std::map<std::string, int64_t> bytes;
  for (const Slot& slot : slots)
    bytes[std::string(to_string(slot.tag))] += ceil_div(slot.bytes, align) * align;
  return bytes;
}

namespace {

// Slots that every program has, and every backward pass, by name.
std::string slot_text(const RankProgram& p, int slot) {
  constexpr std::pair<SlotTag, std::string_view> kNames[] = {{SlotTag::kQuery, "q"},
                                                             {SlotTag::kKeyValue, "kv"},
                                                             {SlotTag::kOutput, "output"},
                                                             {SlotTag::kGradOut, "grad_out"},
                                                             {SlotTag::kStatistics, "statistics"},
                                                             {SlotTag::kGradQuery, "dq"},
                                                             {SlotTag::kGradKeyValue, "dkv"}};
  const bool named = slot >= 0 && slot <= kGradKvSlot && slot < int(p.slots.size()) &&
                     p.slots[size_t(slot)].tag == kNames[slot].first;
  return named ? std::string(kNames[slot].second) : concat("slot", slot);
}

std::string view_text(const RankProgram& p, const SlotView& view) {
  const int first = view.first_piece(), last = first + view.num_pieces() - 1;
  std::string text = concat(slot_text(p, view.slot), "[", to_text(view.rows), "]");
  if (view.pieces != PieceRange{}) text += concat(" piece ", first);
  if (view.pieces != PieceRange{} && last > first) text += concat("..", last);
  return text;
}

std::string group_text(const RankGroup& g) {
  if (g.count == 1) return std::to_string(g[0]);
  const std::string text = concat(g[0], "..", g[g.count - 1]);
  if (g.inner_count > 0) return text + " node by node";
  return g.rotation == 0 && g.stride != 1 ? concat(text, " by ", g.stride) : text;
}

std::string moved(const RankProgram& p, const SlotView& from, const SlotView& into) {
  return view_text(p, from) + " -> " + view_text(p, into);
}
std::string attend_text(const RankProgram& p, const Attend& o) {
  return concat("branch ", o.branch, ", queries ", o.queries.begin, "..", o.queries.end, ", heads ",
                o.heads.first, "..", o.heads.end(), ": ", view_text(p, o.q), " x ",
                view_text(p, o.kv));
}
// Matrices by their slots and shapes.
std::string matrices_text(const RankProgram& p, const ModelOp& op) {
  std::string text;
  const auto add = [&](const MatrixView& m, std::string_view before) {
    text += concat(before, slot_text(p, m.view.slot), "(", m.rows, "x", m.cols, ")");
  };
  for (const MatrixView& m : op.from) add(m, text.empty() ? "" : ", ");
  for (size_t i = 0; i < op.into.size(); ++i)
    add(op.into[i], i > 0 ? ", " : op.accumulate ? " += " : " -> ");
  return text;
}
std::string among(const RankGroup& group) { return " among ranks " + group_text(group); }

}  // namespace

std::string to_text(const Slice& s) {
  const std::string what = s.branch == kEveryRow    ? "rows"
                           : s.branch == kAllValues ? "values"
                                                    : "branch " + std::to_string(s.branch);
  return concat(what, " of ", group_text(s.owners), " in ", s.within.begin, "..", s.within.end,
                s.head_parts > 1 ? concat(" in ", s.head_parts, " head parts") : "");
}

std::string to_text(const RankProgram& p, const Op& op) {
  return visit_op(
      op.what, [&](const Pack& o) { return "pack       " + moved(p, o.from, o.into); },
      [&](const Send& o) { return concat("send       ", view_text(p, o.what), " to rank ", o.to); },
      [&](const Recv& o) {
        return concat("recv       ", view_text(p, o.what), " from rank ", o.from);
      },
      [&](const AllGather& o) { return "all_gather " + view_text(p, o.into) + among(o.group); },
      [&](const AllToAll& o) { return "all_to_all " + moved(p, o.from, o.into) + among(o.group); },
      [&](const ReduceScatter& o) {
        return "reduce_scatter " + view_text(p, o.what) + among(o.group);
      },
      [&](const Attend& o) {
        return "attend     " + attend_text(p, o) + " -> " + view_text(p, o.into);
      },
      [&](const Merge& o) { return "merge      " + moved(p, o.from, o.into); },
      [&](const Reset& o) { return "reset      " + view_text(p, o.into); },
      [&](const Delta& o) {
        return concat("delta      ", view_text(p, o.grad_out), " x ", moved(p, o.output, o.into),
                      o.lse.slot == o.output.slot ? "" : ", LSE of " + view_text(p, o.lse));
      },
      [&](const AttendBackward& o) {
        return concat("attend_backward ", attend_text(p, o.attend()), " -> ",
                      view_text(p, o.into_q), ", ", view_text(p, o.into_kv));
      },
      [&](const Gemm& o) { return "gemm       " + matrices_text(p, o); },
      [&](const RowWise& o) { return concat(to_string(o.function), " ", matrices_text(p, o)); },
      [&](const CrossEntropy& o) { return "cross_entropy " + matrices_text(p, o); },
      [&](const Update& o) { return "update     " + matrices_text(p, o); });
}

std::string to_text(const ShardedProblem& sharded, const RankProgram& program, Rank rank) {
  std::ostringstream out;
  out << "# rank " << rank << " owns tokens";
  for (const TokenRange& r : sharded.layout.shard(rank)) {
    out << " " << r.first << ".." << r.last() + 1;
    if (r.stride > 1) out << " by " << r.stride;
  }
  out << "\n";
  for (size_t i = 0; i < program.slots.size(); ++i) {
    out << "# slot " << i << "  " << to_string(program.slots[i].tag) << "  "
        << program.slots[i].bytes << " bytes";
    for (const Kept& kept : program.kept)
      if (kept.view.slot == int(i)) out << ", as slot " << kept.forward << " of the forward pass";
    out << "\n";
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    out << i << "  " << to_text(program, program.ops[i]);
    if (!program.ops[i].after.empty()) {
      out << "  (after";
      for (OpId a : program.ops[i].after) out << ' ' << a;
      out << ")";
    }
    out << "\n";
  }
  return out.str();
}

namespace {

std::string node(Rank rank, size_t op) {
  return "r" + std::to_string(rank) + "_" + std::to_string(op);
}

void rank_to_dot(const RankProgram& program, Rank rank, std::ostream& out) {
  out << "  subgraph cluster_" << rank << " {\n    label=\"rank " << rank << "\";\n";
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    out << "    " << node(rank, i) << " [shape=" << (is_communication(op.what) ? "ellipse" : "box")
        << ", label=\"" << i << " " << to_text(program, op) << "\"];\n";
    for (OpId a : op.after)
      out << "    " << node(rank, size_t(a)) << " -> " << node(rank, i) << ";\n";
  }
  out << "  }\n";
}

}  // namespace

std::string to_dot(const Schedule& schedule, int max_ranks) {
  const int ranks = std::min(max_ranks, schedule.sharded.layout.world_size());
  std::vector<RankProgram> programs;
  for (Rank p = 0; p < ranks; ++p) programs.push_back(schedule.program(p));
  std::ostringstream out;
  out << "digraph \"" << schedule.algorithm
      << "\" {\n  rankdir=TB; node [fontname=\"sans-serif\", fontsize=10];\n";
  std::map<std::pair<Rank, Rank>, std::deque<std::string>> receives;  // by (from, to)
  for (Rank p = 0; p < ranks; ++p) {
    const auto& ops = programs[size_t(p)].ops;
    rank_to_dot(programs[size_t(p)], p, out);
    for (size_t i = 0; i < ops.size(); ++i)
      if (const auto* recv = std::get_if<Recv>(&ops[i].what))
        receives[{recv->from, p}].push_back(node(p, i));
  }
  for (Rank p = 0; p < ranks; ++p)
    for (size_t i = 0; i < programs[size_t(p)].ops.size(); ++i)
      if (const auto* send = std::get_if<Send>(&programs[size_t(p)].ops[i].what)) {
        auto& waiting = receives[{p, send->to}];  // in order, as transports match them
        if (waiting.empty()) continue;
        out << "  " << node(p, i) << " -> " << waiting.front() << " [style=dashed];\n";
        waiting.pop_front();
      }
  out << "}\n";
  return out.str();
}

}  // namespace longnet
