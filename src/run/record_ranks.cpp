#include "run/record_ranks.h"

#include <algorithm>
#include <cmath>

#include "core/tagged_memory.h"
#include "execute/program_executor.h"
#include "measure/statistics.h"
#include "model/closed_form_step.h"
#include "run/fill_record.h"
#include "run/plan_point.h"
#include "schedule/accounting.h"
#include "schedule/closed_form_counts.h"

namespace longnet {
namespace {

// "branch 2", "rank 3", or "".
std::string detail_of(const Action& what) {
  if (const auto* attend = std::get_if<Attend>(&what)) return concat("branch ", attend->branch);
  if (const auto* send = std::get_if<Send>(&what)) return concat("rank ", send->to);
  if (const auto* recv = std::get_if<Recv>(&what)) return concat("rank ", recv->from);
  return "";
}

// Bytes of slots and of the kernel's scratch memory, but no lists: those of tasks that a GPU holds,
// and an executor's own.
std::pair<int64_t, int64_t> slots_and_workspace(const MemoryLedger& ledger) {
  int64_t slots = 0, workspace = 0;
  for (const auto& [tag, bytes] : ledger.peak_by_tag())
    if (tag != kTaskLists && tag != kProgramLists)
      (tag == kWorkspaceTag ? workspace : slots) += bytes;
  return {slots, workspace};
}

// Counted bytes and messages of the runs against those of the rank's program for one.
void record_communication(PointRecord& record, const CommCounters& c, const RankCounts& expected,
                          int64_t runs, Communicator& comm) {
  const bool equal = c.bytes_sent == runs * expected.bytes_sent &&
                     c.messages_sent == runs * expected.messages_sent &&
                     c.bytes_received == runs * expected.bytes_received &&
                     c.messages_received == runs * expected.messages_received;
  // Traffic of the rank that sends most, per run: all that it sends, and the modelled part of it.
  const auto most = [&](int64_t sent, int64_t modelled) {
    const double mine = double(sent) / double(runs), all = comm.max_of(mine);
    return std::pair(all, comm.max_of(mine == all ? double(modelled) / double(runs) : 0.0));
  };
  const auto [most_sent, modelled_bytes] = most(c.bytes_sent, c.modelled_bytes_sent);
  const auto [most_messages, modelled_messages] = most(c.messages_sent, c.modelled_messages_sent);
  record.comm.counted_bytes_per_rank = std::llround(most_sent - modelled_bytes);
  record.comm.counted_messages_per_rank = std::llround(most_messages - modelled_messages);
  if (modelled_messages > 0) {
    record.comm.modelled_bytes_per_rank = std::llround(modelled_bytes);
    record.comm.modelled_messages_per_rank = std::llround(modelled_messages);
  }
  set_predicted_traffic(record, std::llround(comm.max_of(double(expected.bytes_sent))),
                        std::llround(comm.max_of(double(expected.messages_sent))));
  if (comm.max_of(equal ? 0.0 : 1.0) > 0)
    fail_check(record, "counted bytes or messages differ from the predicted ones");
}

// Slots must take what the program says, tag by tag, and scratch memory what the plan says, or more
// on a GPU, whose attends may take some; the lists of tasks that it holds beside are not planned.
void record_memory(PointRecord& record, const MemoryLedger& ledger, const RankAccount& program,
                   const PointPlan& plan, Communicator& comm) {
  const auto [slots, workspace] = slots_and_workspace(ledger);
  const int64_t expected = program.memory_bytes();
  const int64_t more = int64_t(comm.max_of(double(workspace))) - plan.workspace_bytes;
  bool equal = slots == expected && (more == 0 || (more > 0 && on_gpu(plan.point.params)));
  for (const auto& [tag, bytes] : program.memory_by_tag) equal &= ledger.peak_bytes(tag) == bytes;
  const auto all = gather(
      comm,
      MemoryRecord{.measured_peak_bytes = ledger.peak_bytes() - ledger.peak_bytes(kProgramLists),
                   .by_tag = ledger.peak_by_tag()});
  // The rank whose peak is the largest, the first of them.
  const auto most = std::ranges::max_element(all, {}, &MemoryRecord::measured_peak_bytes);
  set_memory(record, plan.memory_bytes(), most->by_tag, most->measured_peak_bytes);
  if (comm.max_of(equal ? 0.0 : 1.0) > 0)
    fail_check(record, "measured memory differs from the predicted");
}

std::optional<RankCounts> closed_form_of(const PointParams& p, Rank rank) {
  const ShardedProblem sharded = sharded_problem(p);
  const CollectiveChoice choice = collective_choice(p);
  if (!has_layers(p.scope)) return closed_form_counts(p.algorithm, sharded, choice, rank, p.pass);
  return closed_form_step(model_shape(p), p.algorithm, sharded, step_options(p), choice, rank);
}

// The closed forms of each rank's bytes, messages and, of attention, slots against its program and
// its counts. Fails the point where they differ; without a closed form the record has none.
void record_closed_forms(PointRecord& record, const RankCounts& program, const RankCounts& counted,
                         Communicator& comm) {
  const PointParams& p = record.params;
  auto form = closed_form_of(p, comm.rank());
  if (!form) return;  // on no rank
  if (has_layers(p.scope)) form->memory_bytes = program.memory_bytes;
  std::string differs;
  if (*form != program || *form != counted)
    differs = concat("a closed form says of rank ", comm.rank(), ": ", to_text(*form),
                     "; its program says ", to_text(program), "; counted: ", to_text(counted));
  for (const std::string& text : comm.all_texts(differs)) {
    if (text.empty()) continue;
    fail_check(record, text);
    break;
  }
  const auto most = [&](int64_t count) { return std::llround(comm.max_of(double(count))); };
  set_closed_forms(record, {.bytes_sent = most(form->bytes_sent),
                            .messages_sent = most(form->messages_sent),
                            .memory_bytes = has_layers(p.scope) ? 0 : most(form->memory_bytes)});
}

}  // namespace

void record_content(PointRecord& record, const Executor& executor, const RowWorker& worker,
                    Communicator& comm) {
  const AttentionProblem& problem = record.params.problem;
  ContentRecord mine, all;
  mine.input_digest = digest_inputs(executor.bound(), worker);
  for (const OutputSummary& head : summarize_output(executor.bound(), worker)) mine.add({head});
  if (has_backward(executor.program().pass))
    mine.gradient_digests = digest_gradients(executor.bound(), worker);
  for (const ContentRecord& rank : gather(comm, mine)) all.add(rank);
  set_content(record, all, problem.seq_len * problem.num_heads * problem.batch);
}

std::vector<TimelineEntry> timeline_of(const Executor& executor, Communicator& comm) {
  const auto& ops = executor.program().ops;
  const auto times = executor.op_times();
  std::vector<TimelineEntry> mine, all;
  for (size_t i = 0; i < ops.size(); ++i) {
    const std::string text = to_text(executor.program(), ops[i]);
    mine.push_back({comm.rank(), is_communication(ops[i].what) ? "communication" : "compute",
                    text.substr(0, text.find(' ')), times[i].begin_s, times[i].end_s,
                    detail_of(ops[i].what)});
  }
  for (const auto& entries : gather(comm, mine))
    all.insert(all.end(), entries.begin(), entries.end());
  return all;
}

void record_timeline(PointRecord& record, const Executor& executor, Communicator& comm) {
  const auto ops = double(executor.program().ops.size());
  if (comm.max_of(ops) <= kTimelineOps && comm.size() <= kTimelineRanks)
    record.timeline = timeline_of(executor, comm);
}

void record_counts(PointRecord& record, PointSession& session, const PointPlan& plan,
                   const SampleSet& samples, Communicator& comm) {
  const Executor& executor = session.executor();
  const RankAccount a = account(executor.sharded(), executor.program(), comm.rank());
  const CommCounters& c = session.counters();
  const int64_t runs = samples.warmup + int64_t(samples.samples_s.size());
  const double own_s = samples.own_s.empty() ? 0 : median(samples.own_s);
  for (Rank rank = 0; const auto& told : gather(comm, std::vector{own_s, a.pairs}))
    record.per_rank.push_back({.rank = rank++, .median_s = told[0], .pairs = told[1]});
  const RankCounts program = program_counts(executor.sharded(), executor.program(), comm.rank(), a);
  record_communication(record, c, program, runs, comm);
  record_memory(record, session.ledger(), a, plan, comm);
  record_closed_forms(record, program,
                      {c.bytes_sent / runs, c.messages_sent / runs, c.bytes_received / runs,
                       c.messages_received / runs, slots_and_workspace(session.ledger()).first},
                      comm);
}

}  // namespace longnet
