#include "schedule/program_text.h"

#include <sstream>

#include "schedule/row_map.h"

namespace longnet {
namespace {

std::string held_text(const Held& held) {
  static constexpr const char* kNames[] = {"q", "kv", "output"};
  const std::string name =
      held.slot <= kOutputSlot ? kNames[held.slot] : "slot" + std::to_string(held.slot);
  return name + "[" + to_text(held.rows) + "]";
}

std::string group_text(const RankGroup& g) {
  std::ostringstream out;
  out << g.first;
  if (g.count > 1) out << ".." << g[g.count - 1];
  if (g.count > 1 && g.stride != 1) out << " by " << g.stride;
  return out.str();
}

}  // namespace

std::string to_text(const Slice& s) {
  std::ostringstream out;
  out << (s.branch == kEveryRow ? "rows" : "branch " + std::to_string(s.branch)) << " of "
      << group_text(s.owners) << " in " << s.within.begin << ".." << s.within.end;
  return out.str();
}

std::string to_text(const Op& op) {
  std::ostringstream out;
  std::visit(
      Overload{
          [&](const Select& o) {
            out << "select     " << held_text(o.from) << " -> " << held_text(o.into);
          },
          [&](const Send& o) { out << "send       " << held_text(o.what) << " to rank " << o.to; },
          [&](const Recv& o) {
            out << "recv       " << held_text(o.what) << " from rank " << o.from;
          },
          [&](const AllGather& o) {
            out << "all_gather " << held_text(o.own) << " -> " << held_text(o.into)
                << " among ranks " << group_text(o.group);
          },
          [&](const Attend& o) {
            out << "attend     branch " << o.branch << ", queries " << o.queries.begin << ".."
                << o.queries.end << ": q x " << held_text(o.kv) << " -> " << held_text(o.into);
          },
          [&](const Merge& o) {
            out << "merge      " << held_text(o.from) << " -> " << held_text(o.into);
          },
          [&](const Reset& o) { out << "reset      " << held_text(o.into); },
      },
      op.what);
  return out.str();
}

std::string to_text(const ShardedProblem& sharded, const RankProgram& program, Rank rank) {
  std::ostringstream out;
  const TokenInterval shard = sharded.layout.shard(rank);
  out << "# rank " << rank << " owns tokens " << shard.begin << ".." << shard.end << "\n";
  for (size_t i = 0; i < program.slots.size(); ++i)
    out << "# slot " << i << "  " << to_string(program.slots[i].tag) << "  "
        << program.slots[i].bytes << " bytes\n";
  for (size_t i = 0; i < program.ops.size(); ++i) {
    out << i << "  " << to_text(program.ops[i]);
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

const char* shape_of(const Op& op) {
  return std::holds_alternative<Send>(op.what) || std::holds_alternative<Recv>(op.what) ||
                 std::holds_alternative<AllGather>(op.what)
             ? "ellipse"
             : "box";
}

// A send's partner is the k-th receive of the same channel, as transports match them.
OpId matching_recv(const RankProgram& receiver, Rank from, int ordinal) {
  for (size_t i = 0; i < receiver.ops.size(); ++i)
    if (const auto* recv = std::get_if<Recv>(&receiver.ops[i].what);
        recv && recv->from == from && ordinal-- == 0)
      return OpId(i);
  return -1;
}

}  // namespace

std::string to_dot(const Schedule& schedule, int max_ranks) {
  const int ranks = std::min(max_ranks, schedule.sharded.layout.world_size());
  std::vector<RankProgram> programs;
  for (Rank p = 0; p < ranks; ++p) programs.push_back(schedule.program(p));
  std::ostringstream out;
  out << "digraph \"" << schedule.algorithm
      << "\" {\n  rankdir=TB; node [fontname=\"sans-serif\", fontsize=10];\n";
  for (Rank p = 0; p < ranks; ++p) {
    out << "  subgraph cluster_" << p << " {\n    label=\"rank " << p << "\";\n";
    const auto& ops = programs[size_t(p)].ops;
    for (size_t i = 0; i < ops.size(); ++i) {
      out << "    r" << p << "_" << i << " [shape=" << shape_of(ops[i]) << ", label=\"" << i << " "
          << to_text(ops[i]) << "\"];\n";
      for (OpId a : ops[i].after)
        out << "    r" << p << "_" << a << " -> r" << p << "_" << i << ";\n";
    }
    out << "  }\n";
    std::vector<int> sent(size_t(schedule.sharded.layout.world_size()), 0);
    for (size_t i = 0; i < ops.size(); ++i)
      if (const auto* send = std::get_if<Send>(&ops[i].what)) {
        const int ordinal = sent[size_t(send->to)]++;
        if (send->to >= ranks) continue;
        const OpId to = matching_recv(programs[size_t(send->to)], p, ordinal);
        if (to >= 0)
          out << "  r" << p << "_" << i << " -> r" << send->to << "_" << to << " [style=dashed];\n";
      }
  }
  out << "}\n";
  return out.str();
}

}  // namespace longnet
