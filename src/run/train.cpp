#include "run/train.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>

#include "core/check.h"
#include "core/tagged_memory.h"
#include "execute/model_memory.h"
#include "execute/program_executor.h"
#include "io/sha256.h"
#include "io/units.h"
#include "json/json_reader.h"
#include "kernels/attention_kernel.h"
#include "kernels/model_kernel.h"
#include "run/backend.h"
#include "run/checkpoint.h"
#include "run/fill_record.h"
#include "run/plan_point.h"
#include "run/record_ranks.h"
#include "run/train_text.h"

namespace longnet {
namespace {

// The update's own options are those of the config.
Schedule program_of(const TrainPlan& plan, Pass pass) {
  PointParams params = plan.point.params;
  params.pass = pass;
  return make_schedule(params, {.decay = plan.train.decay, .clip_norm = plan.train.clip_norm});
}

// Seconds of a step by kinds of ops; messages where they are waited for.
std::map<std::string, double> seconds_by(const RunPhases& p) {
  return {{"gemm", p.gemm_s},
          {"row_wise", p.row_wise_s - p.cross_entropy_s},
          {"cross_entropy", p.cross_entropy_s},
          {"update", p.update_s},
          {"attention", p.compute_s + p.merge_s - p.gemm_s - p.row_wise_s - p.update_s},
          {"exposed_messages", p.exposed_communication_s}};
}

// Bytes of a rank by tag: its program's slots, and the kernels' scratch memory.
std::map<std::string, int64_t> memory_by_tag(const RankProgram& program,
                                             const PointParams& params) {
  auto bytes = program.memory_by_tag();
  bytes[kWorkspaceTag] = backend_of(params.kernel).workspace_bytes(params, params.threads);
  return bytes;
}

// One rank's part of a training run.
class RankTraining {
 public:
  RankTraining(Communicator& comm, const TrainPlan& plan, TrainText& text, bool is_first,
               const AttentionKernel& kernel, const ModelKernel& model_kernel)
      : comm_(comm),
        plan_(plan),
        text_(text),
        is_first_(is_first),
        executor_(program_of(plan, Pass::kStep), kernel, plan.point.params.threads, comm, ledger_,
                  &model_kernel),
        trainer_(plan.point.params.model, executor_, program_of(plan, Pass::kForward)),
        account_(account(executor_.sharded(), executor_.program(), comm.rank())),
        memory_(memory_by_tag(executor_.program(), plan.point.params)) {}

  int64_t begin(const std::string& folder, const std::optional<Checkpoint>& checkpoint) {
    trainer_.initialise(plan_.point.params.problem.seed);
    if (!comm_.broadcast_flag(!checkpoint ||
                              int64_t(checkpoint->weights.size()) == plan_.parameters))
      throw UsageError("'", folder, "/checkpoint.bin' is of another model, with other weights\n",
                       "  hint: put this run's own back, or start a new run");
    if (!comm_.broadcast_flag(checkpoint.has_value())) return 1;
    double step = 0;
    std::vector<float> weights(size_t(trainer_.count(kWeightSlot)));
    if (checkpoint) {
      step = double(checkpoint->step);
      std::ranges::copy(checkpoint->weights, weights.begin());
    }
    comm_.broadcast(std::as_writable_bytes(std::span(weights)), 0);
    trainer_.set_values(kWeightSlot, weights);
    give_moments(checkpoint ? checkpoint->first_moments : Moments(), kFirstMomentSlot);
    give_moments(checkpoint ? checkpoint->second_moments : Moments(), kSecondMomentSlot);
    return int64_t(comm_.max_of(step)) + 1;
  }

  TrainStep step(int64_t number) {
    const TrainConfig& t = plan_.train;
    const AttentionProblem& p = plan_.point.params.problem;
    text_.batch_of_step(p.seed, number, p.batch, batch_);
    comm_.reset_counters();
    const double begin_s = steady_seconds();
    const StepResult result = trainer_.step(batch_, number, learning_rate_of(t, number));
    const double seconds = steady_seconds() - begin_s;
    check(comm_.counters().bytes_sent == account_.bytes_sent, "a step sent ",
          comm_.counters().bytes_sent, " bytes, predicted ", account_.bytes_sent);
    for (const auto& [tag, bytes] : memory_)
      check(ledger_.peak_bytes(tag) == bytes, "a step took ", ledger_.peak_bytes(tag), " bytes of ",
            tag, ", predicted ", bytes);
    if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
      throw UsageError("the loss or the gradient of step ", number,
                       " is not a number\n  hint: a smaller train.learning_rate, more "
                       "train.warmup_steps");
    TrainStep out{.step = number,
                  .bits_per_byte = result.loss / std::numbers::ln2,
                  .gradient_norm = result.gradient_norm,
                  .learning_rate = learning_rate_of(t, number),
                  .seconds = seconds,
                  .seconds_by = seconds_by(executor_.phases())};
    if (text_.held_out() > 0 && (number % t.evaluate_every == 0 || number == t.steps))
      out.held_out_bits = held_out_bits();
    return out;
  }

  // Timeline of all ranks' ops in the last step; empty for more ranks than a picture can hold.
  std::vector<TimelineEntry> timeline() {
    if (comm_.size() > kTimelineRanks) return {};
    return timeline_of(executor_, comm_);
  }
  // Collective. Checkpoint of the whole model, the same for any number of ranks. Rank 0 alone gets
  // weights and moments.
  Checkpoint checkpoint(int64_t step) {
    Checkpoint out{.step = step,
                   .weights = {},
                   .first_moments = all_moments(kFirstMomentSlot),
                   .second_moments = all_moments(kSecondMomentSlot)};
    if (!is_first_) return out;
    out.weights = trainer_.values(kWeightSlot);
    out.weights.resize(size_t(plan_.parameters));
    return out;
  }

 private:
  double held_out_bits() {
    double sum = 0;
    for (int64_t i = 0; i < plan_.train.evaluate_batches; ++i) {
      text_.held_out_batch(i, plan_.train.evaluate_batches, plan_.point.params.problem.batch,
                           batch_);
      sum += trainer_.evaluate(batch_);
    }
    return sum / double(plan_.train.evaluate_batches) / std::numbers::ln2;
  }
  using Moments = std::vector<float>;
  bool shards() const { return trainer_.count(kFirstMomentSlot) < trainer_.count(kWeightSlot); }
  std::span<float> moments_of(Rank r, Moments& all) const {
    const auto own = size_t(trainer_.count(kFirstMomentSlot));
    return std::span(all).subspan(shards() ? size_t(r) * own : 0, own);
  }
  // Sends each rank the moments that it holds, all or its part, from rank 0, which has all.
  void give_moments(Moments all, int slot) {
    all.resize(size_t(trainer_.count(is_first_ ? kWeightSlot : slot)));
    if (!is_first_) comm_.wait(comm_.irecv(0, std::as_writable_bytes(std::span(all))));
    trainer_.set_values(slot, is_first_ ? moments_of(0, all) : all);
    for (Rank r = 1; is_first_ && r < comm_.size(); ++r)
      comm_.wait(comm_.isend(r, std::as_bytes(moments_of(r, all))));
  }
  // Collects the moments of all ranks on rank 0.
  Moments all_moments(int slot) {
    Moments all = trainer_.values(slot);
    if (!is_first_) {
      if (shards()) comm_.wait(comm_.isend(0, std::as_bytes(std::span(all))));
      return {};
    }
    all.resize(size_t(trainer_.count(kWeightSlot)));
    for (Rank r = 1; shards() && r < comm_.size(); ++r)
      comm_.wait(comm_.irecv(r, std::as_writable_bytes(moments_of(r, all))));
    all.resize(size_t(plan_.parameters));
    return all;
  }

  Communicator& comm_;
  const TrainPlan& plan_;
  TrainText& text_;
  bool is_first_;
  MemoryLedger ledger_;
  ProgramExecutor executor_;
  Trainer trainer_;
  RankAccount account_;                    // a step's: its messages are held against it
  std::map<std::string, int64_t> memory_;  // its buffers are held against it
  std::vector<int32_t> batch_;
};

// train.jsonl: a sealed line a step. Lines behind the checkpoint, of steps that will be made again,
// are cut off.
class StepLines {
 public:
  StepLines(const std::string& directory, int64_t last_step)
      : path_(directory + "/train.jsonl"), file_(path_, O_WRONLY | O_CREAT) {
    const std::string text = read_file_text(path_, "start a new run");
    file_.truncate(take_lines(text, [&](const std::string& line, bool) {
      if (seal_holds(line) != true) return false;
      TrainStep step;
      read_fields(parse_json(line, path_), step);
      return step.step <= last_step;
    }));
  }
  void append(const TrainStep& step) {
    file_.write_all(sealed(dump_json(write_fields(step))) + "\n");
  }

 private:
  std::string path_;
  DurableFile file_;
};

// Writes the timeline as a run of points does.
void write_timeline(const std::string& directory, const std::string& point_id,
                    const std::vector<TimelineEntry>& timeline) {
  if (timeline.empty()) return;
  const JsonNode line = JsonNode::object({{"id", point_id}, {"timeline", to_json(timeline)}});
  DurableFile(directory + "/timelines.jsonl", O_WRONLY | O_CREAT | O_TRUNC)
      .write_all(dump_json(line) + "\n");
}

TextBytes on_all(Communicator& comm, TextBytes text) {
  text.bytes.resize(size_t(comm.max_of(double(text.bytes.size()))));
  text.trained = int64_t(comm.max_of(double(text.trained)));
  comm.broadcast(std::as_writable_bytes(std::span(text.bytes)), 0);
  return text;
}

}  // namespace

double learning_rate_of(const TrainConfig& t, int64_t step) {
  if (step <= t.warmup_steps) return t.learning_rate * double(step) / double(t.warmup_steps);
  const double left = double(std::max<int64_t>(1, t.steps - t.warmup_steps));
  const double share = std::min(1.0, double(step - t.warmup_steps) / left);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * share));
  return t.learning_rate * (t.final_learning_rate + (1 - t.final_learning_rate) * cosine);
}

TrainPlan plan_training(const Sweep& sweep, const MachineLimits& limits, int ranks_here) {
  const std::string& path = sweep.config.path;
  if (!sweep.config.train)
    throw UsageError(path, ": train: is missing\n  hint: configs/train-bytes.json has one");
  if (sweep.points.size() != 1)
    throw UsageError(path, ": sweep: has ", sweep.points.size(),
                     " points, a model trains with one\n  hint: one value for each axis, or "
                     "--filter");
  TrainPlan plan{.config = sweep.config, .train = *sweep.config.train, .point = sweep.points[0]};
  const PointParams& params = plan.point.params;
  check(params.scope == Scope::kModel && params.pass == Pass::kStep, "a model trains in steps");
  if (on_gpu(params))
    throw UsageError(
        path, ": run.kernel: ", params.kernel,
        " runs on GPUs, and models train on cores\n  hint: run.kernel cpu; lnbench run "
        "measures steps on GPUs");
  const std::string refusal =
      plan.point.status == PointStatus::kOk ? why_cannot_run(params) : plan.point.reason;
  if (!refusal.empty())
    throw UsageError(path, ": sweep: ", describe(params), " cannot train: ", refusal);
  if (params.head_groups > 1)
    throw UsageError(path,
                     ": sweep.head_groups: a checkpoint holds the weights of all heads\n"
                     "  hint: leave the key out, or measure steps with lnbench run");
  if (params.model.vocabulary < 256)
    throw UsageError(path, ": model.vocabulary: text is bytes\n  hint: leave the key out: 256");
  plan.parameters = Parameters(plan.point.params.model, params.problem).count();
  const Schedule program = program_of(plan, Pass::kStep);
  for (Rank r = 0; r < params.ranks; ++r) {
    const auto by_tag = memory_by_tag(program.program(r), params);
    if (total_bytes(by_tag) > plan.memory_bytes()) plan.memory_by_tag = by_tag;
  }
  const double needed = double(plan.memory_bytes()) * std::min(params.ranks, ranks_here);
  if (limits.memory_bytes > 0 && needed > double(limits.memory_bytes))
    throw UsageError(path, ": a step needs ", format_bytes(needed), ", this machine has ",
                     format_bytes(double(limits.memory_bytes)),
                     "\n  hint: a smaller sweep.batch or sweep.seq_len, or model.recompute "
                     "full");
  return plan;
}

Trained train(World& world, const TrainPlan& plan, RunTarget target, const TrainHooks& hooks,
              Watchdog& watchdog) {
  const TrainConfig& t = plan.train;
  std::optional<ResultWriter> folder;
  std::optional<Checkpoint> checkpoint;
  TextBytes text;
  if (world.is_root()) {
    text = read_text(t.text, t.held_out);
    [[maybe_unused]] const TrainText refuses_one_too_short(text, plan.point.params.problem.seq_len);
    target.head.run.training = {
        .point = plan.point.params,
        .parameters = plan.parameters,
        .trained_bytes = text.trained,
        .held_out_bytes = int64_t(text.bytes.size()) - text.trained,
        .text_sha256 =
            sha256_hex({reinterpret_cast<const char*>(text.bytes.data()), text.bytes.size()}),
        .memory_by_tag = plan.memory_by_tag};
    folder = target.open();
    if (!target.resume.empty()) checkpoint = read_checkpoint(folder->directory());
  }
  const auto kernel = make_kernel(plan.point.params.kernel);
  const auto model_kernel = make_cpu_model_kernel();
  const double limit_s = plan.config.measure.point_timeout_s + kGraceSeconds;
  return world.run(plan.point.params.ranks, [&](Communicator& comm) {
    const bool root = comm.rank() == 0, of_process = comm.rank() == world.rank();
    TrainText own_text(on_all(comm, root ? text : TextBytes{}), plan.point.params.problem.seq_len);
    RankTraining rank(comm, plan, own_text, root, *kernel, *model_kernel);
    Trained out;
    const int64_t first = rank.begin(target.resume, root ? checkpoint : std::nullopt);
    std::optional<StepLines> lines;
    if (root) out.directory = folder->directory(), lines.emplace(out.directory, first - 1);
    bool stopped = false;
    for (int64_t number = first; number <= t.steps && !stopped; ++number) {
      if (of_process) watchdog.expect(concat("step ", number), limit_s);
      out.last = rank.step(number);
      if (std::isfinite(out.last->held_out_bits)) out.held_out_bits = out.last->held_out_bits;
      if (root) lines->append(*out.last), hooks.stepped(*out.last);
      stopped = comm.broadcast_flag(root && hooks.stop());
      if (number % t.checkpoint_every == 0 || number == t.steps || stopped)
        if (const Checkpoint now = rank.checkpoint(number); root)
          write_checkpoint(out.directory, now);
    }
    if (out.last)
      if (const auto ops = rank.timeline(); root) write_timeline(out.directory, plan.point.id, ops);
    out.complete = !stopped;
    return out;
  });
}

}  // namespace longnet
