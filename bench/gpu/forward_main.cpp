// gpu_forward: whole forward passes on one GPU.
#include <algorithm>
#include <cstdio>

#include "comm/cuda/device_transport.h"
#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "core/cuda/nvml.h"
#include "core/token_range.h"
#include "execute/cuda/device_executor.h"
#include "gpu/support.h"
#include "measure/sampler.h"
#include "schedule/accounting.h"
#include "schedule/registry.h"

namespace longnet::gpu {
namespace {

constexpr const char* kUsage =
    R"(gpu_forward: whole forward passes on one GPU.

  gpu_forward [--figure5] [--from 8192] [--to 1073741824] [--walk N] [--seconds 120]
              [--kernel cuda] [--json FILE]
  gpu_forward --ranks 2 [--transport cuda_ipc] [--kernel cuda] [--json FILE]

  --figure5    LongNet's runtime figure: 12 heads of 64, bf16, segments {2048, tokens per rank, N},
               ratios w_i / w_0, one billion tokens per batch. The device holds a unit of 2^24 tokens
               at a time (less if it must): shorter sequences are batched, longer ones are cut over
               virtual ranks, whose messages the generator makes again. One unit of each N is timed
               (source: measured); the batch is that many times longer (batch_s, extrapolated).
               "beside" is what a unit takes beyond its bare attends, merges inside the kernel included.
               Vanilla attention runs one sequence, as long as it takes below a second, on the same
               kernel. The default.
  --walk N     Every unit of the batch of that N is run for real, as far as --seconds (of the whole
               program) go.
  --ranks P    P ranks as threads that share this GPU, on every transport's program: their times say
               what sharing costs, not what a cluster would do.
  --kernel     cuda, cudnn, gather, or cuda_sm90a where the build offers it.
  --json       Every point, renewed after each.

Exit codes: 0 all right, 1 a point failed or was wrong, 2 usage, 3 no GPU.
)";

constexpr int64_t kBatchTokens = int64_t{1} << 30, kLargestUnit = int64_t{1} << 24;

double median_of(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x.empty() ? 0 : x[x.size() / 2];
}

struct Work {
  AttentionProblem problem;
  DilatedPattern pattern;
  int ranks = 1;
  bool dense = false;
};

Schedule schedule_of(const Work& work) {
  const ShardedProblem s{work.problem, work.pattern, {work.problem.seq_len, work.ranks}};
  return find_algorithm(work.dense ? "local" : "dilated").make(s);
}

// Bytes of a rank's slots.
int64_t slot_bytes(const Schedule& schedule, Rank rank) {
  int64_t bytes = 0;
  for (const Slot& slot : schedule.program(rank).slots) bytes += slot.bytes;
  return bytes;
}

Work dilated_work(int64_t seq_len, int64_t unit) {
  const int64_t per_rank = std::min(seq_len, unit), batch = std::max<int64_t>(1, unit / seq_len);
  Work work{.problem = {.seq_len = seq_len,
                        .num_heads = 12,
                        .num_kv_heads = 12,
                        .head_dim = 64,
                        .batch = batch,
                        .dtype = DType::kBFloat16},
            .pattern = {},
            .ranks = int(std::max<int64_t>(1, seq_len / unit))};
  for (const int64_t w : {int64_t{2048}, per_rank, seq_len}) {
    const DilatedBranch branch{w, std::max<int64_t>(1, w / 2048)};
    if (work.pattern.branches.empty() || work.pattern.branches.back() != branch)
      work.pattern.branches.push_back(branch);
  }
  return work;
}

class Figure5 {
 public:
  explicit Figure5(const Arguments& a)
      : path_(a.text("--json", "")),
        seconds_(a.number("--seconds", 120)),
        from_(int64_t(a.number("--from", 8192))),
        to_(int64_t(a.number("--to", double(kBatchTokens)))),
        walk_(int64_t(a.number("--walk", 0))),
        kernel_(make_device_kernel(a.text("--kernel", "cuda"))),
        report_(devices()) {}

  int run() {
    unit_ = kLargestUnit;
    const auto too_large = [&] {
      return double(slot_bytes(schedule_of(dilated_work(std::min(unit_, int64_t{8192}), unit_)),
                               0)) > 0.8 * double(device_free_bytes());
    };
    while (unit_ > 65536 && too_large()) unit_ /= 2;
    std::printf("# %s, kernel %s, unit %lld tokens\n# %-9s %12s %6s %10s %10s %7s %7s %9s %s\n",
                report_.devices.at(0).name.c_str(), std::string(kernel_->name()).c_str(),
                static_cast<long long>(unit_), "algorithm", "tokens", "ranks", "unit_s", "batch_s",
                "merge", "beside", "TFLOP/s", "check");
    for (int64_t n = from_; n <= to_; n *= 2) point(dilated_work(n, unit_), "dilated");
    for (int64_t n = from_; n <= to_; n *= 2) {
      Work work = dilated_work(n, n);
      work.dense = true;
      work.problem.batch = 1;
      work.pattern = dense_pattern(n);
      // 270 TFLOP/s is what is hoped for: an estimate is enough to stop in time.
      if (4.0 * double(n) * double(n) * 768 / 2.7e14 > 1.0) break;
      point(work, "vanilla");
    }
    if (walk_ > 0) walk(dilated_work(walk_, unit_));
    if (worst_beside_ > 0)
      std::printf("# largest share of a dilated forward beside its attends   %8.4f  goal 0.03 %s\n",
                  worst_beside_, worst_beside_ <= 0.03 ? "met" : "missed");
    write();
    return failed_ == 0 ? 0 : 1;
  }

 private:
  void point(const Work& work, const char* name) {
    if (steady_seconds() - begin_s_ > seconds_) {
      ++left_out_;
      return;
    }
    const AttentionProblem& p = work.problem;
    Json json = Json()
                    .set("algorithm", name)
                    .set("seq_len", p.seq_len)
                    .set("batch", p.batch)
                    .set("virtual_ranks", work.ranks)
                    .set("kernel", kernel_->name());
    note_work(concat(name, " of ", p.seq_len, " tokens"));
    try {
      measure(work, name, json);
    } catch (const std::bad_alloc& e) {
      json.set("status", "oom").set("reason", e.what());
      std::printf("%-11s %12lld %6d  %s\n", name, static_cast<long long>(p.seq_len), work.ranks,
                  e.what());
    } catch (const Error& e) {
      ++failed_;
      json.set("status", "error").set("reason", e.what());
      std::printf("%-11s %12lld %6d  %s\n", name, static_cast<long long>(p.seq_len), work.ranks,
                  e.what());
    }
    std::fflush(stdout);
    points_.push_back(json);
    write();
  }

  struct Parts {
    double attend_s = 0, merge_s = 0;
  };
  // The same attends without the merges that the kernel may do in them, and those by themselves.
  Parts measure_apart(const Schedule& schedule, Rank rank) {
    MemoryLedger ledger;
    DeviceExecutor executor(schedule, rank, *kernel_, nullptr,
                            {.fuse_merges = false, .virtual_ranks = true}, ledger);
    executor.fill_inputs();
    executor.run();
    std::vector<double> attends, merges;
    for (int i = 0; i < 3; ++i) {
      executor.run();
      attends.push_back(executor.attend_s());
      merges.push_back(executor.phases().merge_s);
    }
    return {median_of(attends), median_of(merges)};
  }

  void measure(const Work& work, const char* name, Json& json) {
    const AttentionProblem& p = work.problem;
    const Parts apart = measure_apart(schedule_of(work), work.ranks / 2);
    const int64_t free_before = device_free_bytes();
    MemoryLedger ledger;
    const Schedule schedule = schedule_of(work);
    const Rank rank = work.ranks / 2;
    DeviceExecutor executor(schedule, rank, *kernel_, nullptr, {.virtual_ranks = true}, ledger);
    executor.fill_inputs();
    executor.run();
    std::vector<double> forward, merges;
    MemoryLedger scratch;
    const DeviceBuffer flush(scratch, "flush", flush_bytes());
    const Stream stream;
    const double begin = steady_seconds();
    for (int i = 0; i < 10 && (i < 3 || steady_seconds() - begin < 1); ++i) {
      stream.fill(flush.data(), 0x5A, flush.size());
      stream.synchronize();
      const double all = executor.run();  // messages are not part of the forward pass
      forward.push_back(all - executor.receive_s());
      merges.push_back(executor.phases().merge_s);
    }
    const int64_t used = free_before - device_free_bytes() - flush.size();
    const DeviceClocks clocks = read_device_clocks(current_device());
    const double unit_s = median_of(forward);
    const double flops = account(schedule.sharded, executor.program(), rank).flops;
    const double units = double(kBatchTokens) / double(p.batch * p.seq_len / work.ranks);
    const SampleErrors errors = executor.compare(p, samples_of(schedule, executor));
    const CheckOutcome check = judge(errors, executor.count_nan(), schedule.sharded,
                                     {kDeviceTolerance, kDeviceLseTolerance});
    failed_ += !check.pass;
    const double beside = apart.attend_s > 0 ? 1 - apart.attend_s / unit_s : NAN;
    json.set("status", check.pass ? "ok" : "check_failed")
        .set("source", "measured")
        .set("unit_s", unit_s)
        .set("unit_samples_s", forward)
        .set("units_per_batch", units)
        .set("batch_s", unit_s * units)
        .set("batch_source", units > 1 ? "extrapolated" : "measured")
        .set("merge_s", median_of(merges))
        .set("attend_s", executor.attend_s())
        .set("bare_attend_s", apart.attend_s)
        .set("separate_merge_s", apart.merge_s)
        .set("share_beside_attend", beside)
        .set("flops_per_s", flops / unit_s)
        .set("receive_s", executor.receive_s())
        .set("slot_bytes", slot_bytes(schedule, rank))
        .set("ledger_peak_bytes", ledger.peak_bytes())
        .set("device_bytes", used)
        .set("rel_l2_error", check.rel_l2_error)
        .set("queries", errors.queries)
        .set("clocks_sm_mhz", clocks.sm_mhz)
        .set("power_w", clocks.power_w)
        .set("throttle", clocks.known ? clocks.limits_text() : "unknown");
    if (!work.dense && beside > worst_beside_) worst_beside_ = beside;
    std::printf("%-11s %12lld %6d %10.5f %10.4f %7.4f %7.4f %9.1f %s\n", name,
                static_cast<long long>(p.seq_len), work.ranks, unit_s, unit_s * units,
                median_of(merges) / unit_s, beside, flops / unit_s * 1e-12,
                check.pass ? "pass" : "FAIL");
  }

  static std::vector<QuerySample> samples_of(const Schedule& schedule,
                                             const DeviceExecutor& executor) {
    const ShardedProblem& s = schedule.sharded;
    // The reference regenerates every key that a query sees: few queries where they see many.
    double keys = 0;
    for (const DilatedBranch& b : s.pattern.branches)
      keys += double(std::min(b.segment_length, s.problem.seq_len)) / double(b.dilation_rate);
    const int64_t count = std::clamp<int64_t>(int64_t(4e5 / keys), 4, 32);
    const Rank rank = s.layout.owner(executor.shard().first());
    return choose_shard_samples(s, rank, 0, s.problem.batch, choose_samples(s, count), count);
  }

  // Every unit of one batch, one after another.
  void walk(const Work& work) {
    const AttentionProblem& p = work.problem;
    const int64_t unit_tokens = p.batch * p.seq_len / work.ranks;
    const int64_t units = kBatchTokens / unit_tokens;
    double forward = 0, receive = 0;
    const double begin = steady_seconds();
    int64_t done = 0, nan = 0;
    SampleErrors errors;
    const Schedule schedule = schedule_of(work);
    AttentionProblem whole = p;
    whole.batch = std::max(p.batch, kBatchTokens / p.seq_len);
    std::string reason;
    for (; done < units && steady_seconds() - begin_s_ < seconds_; ++done) try {
        note_work(concat("walk, unit ", done));
        MemoryLedger ledger;
        const Rank rank = work.ranks > 1 ? Rank(done % work.ranks) : 0;
        const int64_t first_batch = work.ranks > 1 ? done / work.ranks : done * p.batch;
        DeviceExecutor executor(schedule, rank, *kernel_, nullptr,
                                {.virtual_ranks = true, .first_batch = first_batch}, ledger);
        executor.fill_inputs();
        const double all = executor.run();
        forward += all - executor.receive_s();
        receive += executor.receive_s();
        nan += executor.count_nan();
        errors.add(executor.compare(
            whole, choose_shard_samples(schedule.sharded, rank, first_batch, p.batch, {}, 4)));
      } catch (const std::exception& e) {  // what the units before it took is a result all the same
        reason = e.what();
        break;
      }
    const CheckOutcome check =
        judge(errors, nan, schedule.sharded, {kDeviceTolerance, kDeviceLseTolerance});
    failed_ += !check.pass || !reason.empty();  // out of time is no failure
    const double wall = steady_seconds() - begin;
    points_.push_back(Json()
                          .set("algorithm", "dilated")
                          .set("section", "walk")
                          .set("seq_len", p.seq_len)
                          .set("virtual_ranks", work.ranks)
                          .set("kernel", kernel_->name())
                          .set("units", units)
                          .set("units_run", done)
                          .set("tokens", done * unit_tokens)
                          .set("source", "measured")
                          .set("forward_s", forward)
                          .set("receive_s", receive)
                          .set("wall_s", wall)
                          .set("rel_l2_error", check.rel_l2_error)
                          .set("queries", errors.queries)
                          .set("reason", reason)
                          .set("status", !reason.empty() ? "error"
                                         : done < units  ? "timeout"
                                         : check.pass    ? "ok"
                                                         : "check_failed"));
    std::printf("# walk: %lld of %lld units, %.3f s of forward passes, %.1f s in all, %s %s\n",
                static_cast<long long>(done), static_cast<long long>(units), forward, wall,
                check.pass ? "pass" : "FAIL", reason.c_str());
  }

  void write() const {
    if (path_.empty()) return;
    write_file(path_, Json()
                          .set("schema_version", 1)
                          .set("program", "gpu_forward")
                          .set("section", "figure5")
                          .set("device", device_json())
                          .set("unit_tokens", unit_)
                          .set("left_out", left_out_)
                          .set("points", points_)
                          .text());
  }

  std::string path_;
  double seconds_, begin_s_ = steady_seconds();
  int64_t from_, to_, walk_, unit_ = 0;
  std::unique_ptr<DeviceKernel> kernel_;
  DeviceReport report_;
  std::vector<Json> points_;
  int64_t left_out_ = 0, failed_ = 0;
  double worst_beside_ = 0;
};

// Ranks as threads that share the device.
int run_ranks(const Arguments& a) {
  const int ranks = int(a.number("--ranks", 2));
  std::vector<Json> points;
  int64_t failed = 0;
  std::printf("# %-14s %-9s %10s %12s %12s %s\n", "algorithm", "transport", "median_s",
              "bytes/rank", "predicted", "check");
  for (const char* transport : {"cuda_ipc", "mpi_host"})
    for (const char* name : {"dilated", "ring", "all_gather", "ulysses"}) {
      if (a.text("--transport", transport) != transport) continue;
      const int64_t n = 65536;
      ShardedProblem s{{.seq_len = n,
                        .num_heads = 12,
                        .num_kv_heads = 12,
                        .head_dim = 64,
                        .dtype = DType::kBFloat16},
                       dense_pattern(n),
                       {n, ranks}};
      if (find_algorithm(name).pattern == PatternKind::kDilated)
        s.pattern = {.branches = {{2048, 1},
                                  {n / ranks, std::max<int64_t>(1, n / ranks / 2048)},
                                  {n, n / 2048}}};
      Json json = Json()
                      .set("algorithm", name)
                      .set("transport", transport)
                      .set("ranks", ranks)
                      .set("seq_len", n);
      std::string failure;
      note_work(concat(ranks, " ranks, ", name, " by ", transport));
      try {
        const Schedule schedule = find_algorithm(name).make(s);
        run_on_threads(ranks, [&](Communicator& comm) {
          use_device(device_of_rank(comm));
          const auto kernel = make_device_kernel(a.text("--kernel", "cuda"));
          const auto link = make_device_transport(transport, comm);
          MemoryLedger ledger;
          DeviceExecutor executor(schedule, comm.rank(), *kernel, link.get(), {}, ledger);
          executor.fill_inputs();
          std::vector<double> samples;
          constexpr int kRuns = 8, kWarmup = 3;
          for (int i = 0; i < kRuns; ++i) {
            comm.barrier();
            const double begin = steady_seconds();
            executor.run();
            const double took = comm.max_of(steady_seconds() - begin);
            if (i >= kWarmup) samples.push_back(took);
          }
          const CheckOutcome check = executor.check_samples(choose_samples(s, 16), comm);
          const RankAccount expected = account(s, executor.program(), comm.rank());
          const double counted = comm.max_of(double(link->counters().bytes_sent) / kRuns);
          const double predicted = comm.max_of(double(expected.bytes_sent));
          if (comm.rank() != 0) return;
          if (!check.pass) failure = concat("rel_l2 ", check.rel_l2_error);
          if (counted != predicted) failure += " counted bytes differ";
          json.set("median_s", median_of(samples))
              .set("samples_s", samples)
              .set("counted_bytes_per_rank", counted)
              .set("predicted_bytes_per_rank", predicted)
              .set("rel_l2_error", check.rel_l2_error)
              .set("compute_s", executor.phases().compute_s)
              .set("exposed_communication_s", executor.phases().exposed_communication_s);
          std::printf("%-16s %-9s %10.5f %12.0f %12.0f %s\n", name, transport, median_of(samples),
                      counted, predicted, failure.empty() ? "pass" : failure.c_str());
        });
      } catch (const std::exception& e) {
        failure = e.what();
        std::printf("%-16s %-9s %s\n", name, transport, e.what());
      }
      std::fflush(stdout);
      failed += !failure.empty();
      json.set("status", failure.empty() ? "ok" : "error").set("reason", failure);
      points.push_back(json);
      if (const std::string path = a.text("--json", ""); !path.empty())
        write_file(path, Json()
                             .set("schema_version", 1)
                             .set("program", "gpu_forward")
                             .set("section", "ranks_on_one_gpu")
                             .set("device", device_json())
                             .set("points", points)
                             .text());
    }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace longnet::gpu

int main(int argc, char** argv) {
  using namespace longnet::gpu;
  return run_program({"gpu_forward",
                      kUsage,
                      {"--figure5", "--ranks", "--transport", "--kernel", "--seconds", "--from",
                       "--to", "--walk", "--json"}},
                     argc, argv, [](const Arguments& arguments) {
                       return arguments.has("--ranks") ? run_ranks(arguments)
                                                       : Figure5(arguments).run();
                     });
}
