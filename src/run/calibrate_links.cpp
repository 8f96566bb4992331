#include <algorithm>
#include <functional>

#include "execute/program_executor.h"
#include "kernels/attention_kernel.h"
#include "run/calibrate.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

constexpr int64_t kSmallMessage = 1024;

class LinkTimer {
 public:
  LinkTimer(Communicator& comm, Rank a, Rank b, const LinkBudget& budget)
      : comm_(comm), budget_(budget), takes_part_(comm.rank() == a || comm.rank() == b) {
    other_ = comm.rank() == a ? b : a;
    first_ = comm.rank() == a;
    out_.resize(size_t(budget.max_bytes), std::byte{1});
    in_.resize(size_t(budget.max_bytes));
  }

  // Seconds of one run; `run` is one side's part, repeated so that clocks see enough.
  double time(double expected_s, const std::function<void()>& run) const {
    const int repeats = std::clamp(int(100e-6 / std::max(expected_s, 1e-7)), 1, 100);
    return quartile_seconds(comm_, budget_.effort,
                            [&] {
                              for (int i = 0; takes_part_ && i < repeats; ++i) run();
                            }) /
           repeats;
  }

  double one_way(int64_t bytes, double expected_s) {
    return time(2 * expected_s,
                [&] {
                  if (first_)
                    send(bytes), receive(bytes);
                  else
                    receive(bytes), send(bytes);
                }) /
           2;
  }
  double exchange(int64_t bytes, int count, double expected_s) {
    return time(count * expected_s, [&] {
      requests_.clear();
      for (int i = 0; i < count; ++i) {
        requests_.push_back(comm_.irecv(other_, part(in_, bytes)));
        requests_.push_back(comm_.isend(other_, part(out_, bytes)));
      }
      for (const Communicator::Request r : requests_) comm_.wait(r);
    });
  }

 private:
  static std::span<std::byte> part(std::vector<std::byte>& all, int64_t bytes) {
    return std::span(all).first(size_t(bytes));
  }
  void send(int64_t bytes) { comm_.wait(comm_.isend(other_, part(out_, bytes))); }
  void receive(int64_t bytes) { comm_.wait(comm_.irecv(other_, part(in_, bytes))); }

  Communicator& comm_;
  LinkBudget budget_;
  bool takes_part_, first_ = false;
  Rank other_ = 0;
  std::vector<std::byte> out_, in_;
  std::vector<Communicator::Request> requests_;
};

}  // namespace

LinkMeasurement measure_link(Communicator& comm, Rank a, Rank b, const LinkBudget& budget) {
  LinkTimer timer(comm, a, b, budget);
  LinkMeasurement result;
  double last = 1e-6;
  timer.exchange(kSmallMessage, 1, last);  // connects
  for (int64_t bytes = kSmallMessage; bytes <= budget.max_bytes; bytes *= 4) {
    const double one = timer.one_way(bytes, last), both = timer.exchange(bytes, 1, last);
    result.one_way.push_back({double(bytes), one});
    result.exchange.push_back({double(bytes), both});
    last = both;
    if (result.exchange.size() >= 3 && 4 * both > budget.largest_message_s) break;
  }
  constexpr int kMany = 16;
  const double small = result.exchange.front().seconds;
  const double many = timer.exchange(kSmallMessage, kMany, small);
  // Each further exchange costs a rank two posts: one send, one receive.
  result.overhead_s = std::max(0.0, (many - small) / (kMany - 1) / 2);
  return result;
}

double OverlapMeasurement::hidden_s() const {
  return std::clamp(communication_s - (full_s - compute_in_full_s), 0.0, communication_s);
}

double OverlapMeasurement::bytes_per_s_without_progress() const {
  if (too_short()) return 0;
  const double bytes = 2 * (ranks - 1) * message_bytes * hidden_s() / communication_s;
  return bytes / (compute_in_full_s * (ranks - 1) / ranks);
}

double OverlapMeasurement::efficiency() const {
  return too_short() ? 1 : std::clamp(compute_s / compute_in_full_s, 0.1, 1.0);
}

OverlapMeasurement measure_overlap(Communicator& comm, int threads, int64_t rows,
                                   const Effort& effort) {
  const int64_t seq_len = rows * comm.size();
  const AttentionProblem problem{.seq_len = seq_len, .num_heads = 4, .num_kv_heads = 4};
  const ShardedProblem sharded{problem, dense_pattern(seq_len), {seq_len, comm.size()}};
  const auto kernel = make_kernel("cpu");
  MemoryLedger ledger;
  ProgramExecutor executor(ring_attention(sharded), *kernel, threads, comm, ledger);
  executor.fill_inputs();
  std::vector<double> computes;
  const auto time = [&](RunMode mode) {
    computes.clear();
    return quartile_seconds(comm, effort, [&] {
      executor.run(mode);
      computes.push_back(executor.phases().compute_s);
    });
  };
  OverlapMeasurement m{.seq_len = seq_len, .ranks = double(comm.size())};
  m.message_bytes = 2.0 * double(seq_len / comm.size() * problem.num_kv_heads * problem.head_dim) *
                    double(dtype_bytes(problem.dtype));
  m.compute_s = time(RunMode::kComputeOnly);
  m.communication_s = time(RunMode::kCommunicationOnly);
  m.full_s = time(RunMode::kFull);
  std::sort(computes.begin(), computes.end());
  m.compute_in_full_s = comm.max_of(computes[computes.size() / 4]);
  return m;
}

}  // namespace longnet
