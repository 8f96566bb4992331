#include "execute/program_executor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "schedule/accounting.h"

namespace longnet {

void RunPhases::add(const Action& what, double seconds) {
  (std::holds_alternative<Merge>(what) ? merge_s : compute_s) += seconds;
  visit_op(
      what, [&](const Attend&) { attend_s += seconds; },
      [&](const AttendBackward&) { attend_s += seconds; }, [&](const Gemm&) { gemm_s += seconds; },
      [&](const RowWise&) { row_wise_s += seconds; },
      [&](const CrossEntropy&) {
        row_wise_s += seconds;
        cross_entropy_s += seconds;
      },
      [&](const Update&) { update_s += seconds; }, [](const auto&) {});
}

void require_supported(const AttentionKernel& kernel, const BoundProgram& bound) {
  const std::string refusal = kernel.why_unsupported(bound.options());
  check(refusal.empty(), "kernel ", kernel.name(), ": ", refusal);
}

void execute_rows(const AttentionKernel& kernel, const BoundProgram& bound, size_t op) {
  const BoundOp& b = bound.op(op);
  const AttendOptions& options = bound.options();
  const int threads = bound.threads();
  AttendOptions floats = options;
  floats.dtype = DType::kFloat32;
  kernel.pack(b.packs, Conversion::kNone, options, threads);
  kernel.pack(b.float_packs, Conversion::kNone, floats, threads);
  kernel.pack(b.rounds, Conversion::kRound, options, threads);
  kernel.pack(b.widens, Conversion::kWiden, options, threads);
  for (const PackTask& lse : b.lse_packs)
    for (int64_t i = 0; i < lse.rows; ++i)
      static_cast<float*>(lse.into)[i * lse.into_stride] =
          static_cast<const float*>(lse.from)[i * lse.from_stride];
  kernel.merge(b.merges, bound.merge_rule(), options, threads);
  kernel.add(b.sums, options, threads);
  if (!b.deltas.empty()) kernel.delta(b.deltas, options, threads);
  kernel.fill(b.zeros, 0.0f, threads);
  kernel.fill(b.absent, -std::numeric_limits<float>::infinity(), threads);
}

ProgramExecutor::ProgramExecutor(const Schedule& schedule, const AttentionKernel& kernel,
                                 int threads, Communicator& comm, MemoryLedger& ledger,
                                 const ModelKernel* model)
    : kernel_(kernel), model_(model), comm_(comm) {
  check(comm.size() == schedule.sharded.layout.world_size(), "the schedule is for ",
        schedule.sharded.layout.world_size(), " ranks, the communicator has ", comm.size());
  RankProgram program = schedule.program(comm.rank());
  BoundProgram::Memory memory;
  for (const Slot& slot : program.slots)
    memory.push_back(
        slots_.emplace_back(ledger, std::string(to_string(slot.tag)), slot.bytes).bytes());
  bind(schedule, std::move(program), threads, std::move(memory));
  const bool of_model = has_layers(this->program().scope);
  check(!of_model || model != nullptr, "a program of a model needs kernels for its layers");
  own_workspace_ = TaggedBuffer(
      ledger, kWorkspaceTag,
      std::max(kernel.workspace_bytes(bound_->options(), threads, this->program().pass),
               of_model ? model->workspace_bytes(threads) : 0));
  workspace_ = own_workspace_.bytes();
  const auto beside =
      int64_t(times_.size() * (sizeof(OpTime) + sizeof(size_t)) + times_.size() / 8);
  lists_ = CountedBytes(ledger, kProgramLists, bound_->list_bytes() + beside, this);
}

ProgramExecutor::ProgramExecutor(const Schedule& schedule, const ProgramExecutor& memory_of)
    : kernel_(memory_of.kernel_), model_(memory_of.model_), comm_(memory_of.comm_) {
  RankProgram program = schedule.program(comm_.rank());
  BoundProgram::Memory memory = memory_of.bound().memory_for(program);
  bind(schedule, std::move(program), memory_of.bound().threads(), std::move(memory));
  workspace_ = memory_of.workspace_;
}

void ProgramExecutor::bind(const Schedule& schedule, RankProgram program, int threads,
                           BoundProgram::Memory memory) {
  memory.resize(program.slots.size());
  bound_ = std::make_unique<BoundProgram>(schedule, std::move(program),
                                          BindOptions{.rank = comm_.rank(), .threads = threads},
                                          std::move(memory));
  require_supported(kernel_, *bound_);
  const size_t ops = this->program().ops.size();
  times_.resize(ops);
  in_flight_.reserve(ops);
  passed_.resize(ops);
}

ProgramExecutor::~ProgramExecutor() {
  if (!in_flight_.empty()) comm_.abandon();
}

void ProgramExecutor::open() {
  for (size_t i = 0; i < program().ops.size(); ++i)
    if (const BoundOp& op = bound_->op(i); !op.into_counts.empty()) comm_.open_group(op.group);
  for (TaggedBuffer& slot : slots_)  // NaN in fp32 and bf16
    std::fill_n(slot.data(), slot.size(), std::byte{0xFF});
}

void ProgramExecutor::fill_inputs() {
  open();
  longnet::fill_inputs(*bound_, *make_cpu_row_worker());
}

std::vector<std::span<std::byte>> ProgramExecutor::poisoned() const {
  auto memory = Executor::poisoned();
  memory.push_back(workspace_);
  return memory;
}

double ProgramExecutor::elapsed() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

double ProgramExecutor::run(RunMode mode) {
  start_ = std::chrono::steady_clock::now();
  waited_s_ = tested_s_ = 0;
  in_flight_.clear();
  std::fill(passed_.begin(), passed_.end(), false);
  for (size_t i = 0; i < program().ops.size(); ++i) {
    times_[i] = {};
    const bool communicates = is_communication(program().ops[i].what);
    if (mode == (communicates ? RunMode::kComputeOnly : RunMode::kCommunicationOnly)) continue;
    const double before = elapsed();
    if (mode == RunMode::kCommunicationOnly)
      wait_for_communications_before(i);
    else
      for (OpId a : program().ops[i].after) wait_for(size_t(a));
    if (mode == RunMode::kSerialised && !communicates)
      while (!in_flight_.empty()) wait_for(in_flight_.front().op);
    times_[i].begin_s = elapsed();
    if (communicates) {
      post(i);
      waited_s_ += elapsed() - before;
    } else {
      waited_s_ += times_[i].begin_s - before;
      execute(i);
      times_[i].end_s = elapsed();
    }
  }
  const double before = elapsed();
  while (!in_flight_.empty()) wait_for(in_flight_.front().op);
  const double end = elapsed();
  waited_s_ += end - before;
  return end;
}

void ProgramExecutor::post(size_t op) {
  const BoundOp& b = bound_->op(op);
  const auto request = visit_op(
      program().ops[op].what, [&](const Send&) { return comm_.isend(b.peer, b.from); },
      [&](const Recv&) { return comm_.irecv(b.peer, b.into); },
      [&](const AllGather&) { return comm_.iall_gather(b.group, b.into, b.into_counts); },
      [&](const AllToAll&) {
        return comm_.iall_to_all(b.group, b.from, b.from_counts, b.into, b.into_counts);
      },
      [](const auto&) { return Communicator::Request{-1}; });
  in_flight_.push_back({op, request});
}

void ProgramExecutor::wait_for(size_t op) {
  const auto it = std::ranges::find(in_flight_, op, &Posted::op);
  if (it == in_flight_.end()) return;
  comm_.wait(it->request);
  times_[op].end_s = elapsed();
  in_flight_.erase(it);
}

void ProgramExecutor::wait_for_communications_before(size_t op) {
  for (const OpId a : program().ops[op].after) {
    if (is_communication(program().ops[size_t(a)].what)) {
      wait_for(size_t(a));
    } else if (!passed_[size_t(a)]) {
      passed_[size_t(a)] = true;
      wait_for_communications_before(size_t(a));
    }
  }
}

void ProgramExecutor::test_in_flight() {
  constexpr double kBetween_s = 200e-6;  // a test may cost a few microseconds
  if (in_flight_.empty() || elapsed() - tested_s_ < kBetween_s) return;
  tested_s_ = elapsed();
  std::erase_if(in_flight_, [&](const Posted& posted) {
    if (!comm_.test(posted.request)) return false;
    times_[posted.op].end_s = elapsed();
    return true;
  });
}

void ProgramExecutor::execute(size_t op) {
  test_in_flight();
  for (const ModelTask& task : bound_->op(op).tasks)
    model_->run(task, bound_->threads(), workspace_);
  execute_rows(kernel_, *bound_, op);
  AttendOptions options = bound_->options();
  options.progress_hook = &test_in_flight_;
  const auto& attends = bound_->op(op).attends;
  if (!attends.empty()) kernel_.attend(attends, options, bound_->threads(), workspace_);
  const auto& backwards = bound_->op(op).backwards;
  if (!backwards.empty())
    kernel_.attend_backward(backwards, options, bound_->threads(), workspace_);
}

std::optional<SingleAttend> ProgramExecutor::single_attend() {
  if (!has_single_attend(program().pass, program().scope)) return {};
  const AttentionProblem& p = sharded().problem;
  const double pairs = account(sharded(), program(), comm_.rank()).pairs;
  const double rows = double(shard().tokens());
  SingleAttend single;
  single.pairs = pairs;
  if (rows == 0 || pairs == 0) return single;
  const double own_pairs = rows * rows * double(p.num_heads) * double(p.batch);
  const BoundOp bound = bound_->bind_own_attend();
  // Takes tasks until they have `pairs` pairs; each list of keys is repeated if all have too few.
  const int64_t repeats = std::max<int64_t>(1, int64_t(std::ceil(pairs / own_pairs)));
  for (const AttendGrid& grid : bound.attends)
    for (int64_t t = 0; t < grid.size() && single.listed_pairs < pairs; ++t) {
      AttendTask task = grid.at(t);
      auto& list = single.keys.emplace_back();
      for (int64_t i = 0; i < repeats; ++i)
        for (const KvRun run : task.kv) list.push_back(run);
      double keys = 0;
      for (const KvRun& kv : list) keys += double(kv.rows);
      const double wanted = std::ceil((pairs - single.listed_pairs) / keys);
      task.q.rows = std::clamp<int64_t>(int64_t(wanted), 1, task.q.rows);
      single.listed_pairs += double(task.q.rows) * keys;
      single.tasks.push_back({task});
    }
  for (size_t i = 0; i < single.tasks.size(); ++i) single.tasks[i].task.kv = single.keys[i];
  return single;
}

double ProgramExecutor::run(const SingleAttend& single) {
  start_ = std::chrono::steady_clock::now();
  if (single.tasks.empty()) return 0;
  AttendOptions unmasked = bound_->options();
  unmasked.causal = false;
  kernel_.attend(single.tasks, unmasked, bound_->threads(), workspace_);
  return elapsed();
}

RunPhases ProgramExecutor::phases() const {
  RunPhases phases{.exposed_communication_s = waited_s_};
  for (size_t i = 0; i < times_.size(); ++i)
    if (const Action& what = program().ops[i].what; !is_communication(what))
      phases.add(what, times_[i].end_s - times_[i].begin_s);
  return phases;
}

int64_t ProgramExecutor::count_nan() const {
  int64_t count = 0;
  for (const auto values : made_values(*bound_))
    count += std::ranges::count_if(values, [](float x) { return std::isnan(x); });
  return count;
}

}  // namespace longnet
