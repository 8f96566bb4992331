// `lnbench comm`: the communicator alone, in the terms of nccl-tests (doc/PERFORMANCE.md there):
//   algorithm bandwidth = size / time, where size is what one rank has after a gather (or gives to
//   an exchange); bus bandwidth = algorithm bandwidth * (P - 1) / P, the rate of the links whatever
//   P is.
// Every operation and size is first run once on known data: what arrives wrong ends the command.
#include <algorithm>
#include <iomanip>
#include <iostream>

#include "comm/verified_transfer.h"
#include "core/check.h"
#include "io/environment.h"
#include "io/units.h"
#include "lnbench/machine.h"
#include "lnbench/options.h"
#include "lnbench/rank_clock.h"
#include "lnbench/world.h"

namespace longnet {
namespace {

constexpr int kWarmup = 3;  // a first message to a peer sets up its connection

class CommBench {
 public:
  explicit CommBench(Communicator& comm) : comm_(comm), clock_(comm, gather_places(comm)) {
    group_ = {.first = 0, .stride = 1, .count = comm.size()};
    comm_.open_group(group_);
  }

  void point_to_point(int64_t bytes) {  // ranks 0 and 1: half a round trip
    std::vector<std::byte> out(static_cast<size_t>(bytes)), in(static_cast<size_t>(bytes));
    verify_send_recv(comm_, out, in);
    const int repeats = bytes < 65536 ? 50 : 4;
    const SampleSet set = time([&] {
      for (int i = 0; i < repeats; ++i) {
        if (comm_.rank() == 0) {
          comm_.wait(comm_.isend(1, out));
          comm_.wait(comm_.irecv(1, in));
        } else if (comm_.rank() == 1) {
          comm_.wait(comm_.irecv(0, in));
          comm_.wait(comm_.isend(0, out));
        }
      }
    });
    print("send_recv", bytes, set.interval.median / (2 * repeats), set, 1.0);
  }

  void all_gather(int64_t bytes) {  // `bytes`: of the gathered whole
    const int64_t part = bytes / comm_.size() / 4 * 4;
    if (part == 0) return;
    std::vector<std::byte> all(size_t(part * comm_.size()));
    const std::vector<int64_t> counts(size_t(comm_.size()), part);
    verify_all_gather(comm_, group_, all, counts);
    const SampleSet set = time([&] { comm_.wait(comm_.iall_gather(group_, all, counts)); });
    print("all_gather", int64_t(all.size()), set.interval.median, set, bus_factor());
  }

  void all_to_all(int64_t bytes) {  // `bytes`: what a rank gives, its own part included
    const int64_t part = bytes / comm_.size() / 4 * 4;
    if (part == 0) return;
    std::vector<std::byte> out(size_t(part * comm_.size())), in(out.size());
    const std::vector<int64_t> counts(size_t(comm_.size()), part);
    verify_all_to_all(comm_, group_, out, in, counts);
    const SampleSet set =
        time([&] { comm_.wait(comm_.iall_to_all(group_, out, counts, in, counts)); });
    print("all_to_all", int64_t(out.size()), set.interval.median, set, bus_factor());
  }

 private:
  double bus_factor() const { return double(comm_.size() - 1) / comm_.size(); }

  SampleSet time(const std::function<void()>& run) {
    return sample({.warmup = kWarmup,
                   .min_samples = 10,
                   .max_samples = 40,
                   .target_ci = 0.05,
                   .time_budget_s = 5},
                  clock_.hooks(run));
  }

  void print(const char* what, int64_t bytes, double seconds, const SampleSet& set,
             double bus) const {
    if (comm_.rank() != 0) return;
    if (set.samples_s.empty()) {
      std::cout << "# " << what << " of " << bytes << " bytes: no sample within the time budget\n"
                << std::flush;
      return;
    }
    const double algorithm = double(bytes) / seconds / 1e9;
    std::cout << std::left << std::setw(11) << what << std::right << std::setw(12) << bytes
              << std::setw(12) << std::setprecision(4) << seconds * 1e6 << std::setw(12)
              << algorithm << std::setw(12) << algorithm * bus << std::setw(8)
              << set.samples_s.size() << std::setw(10) << std::setprecision(3);
    if (set.samples_s.size() > 1)
      std::cout << 100 * set.interval.relative_half_width();
    else
      std::cout << "-";  // one sample says nothing about the next
    std::cout << "\n" << std::flush;
  }

  Communicator& comm_;
  RankClock clock_;
  RankGroup group_;
};

}  // namespace

int run_comm(const Options& options) {
  const auto max_bytes = try_parse_bytes(options.max_bytes);
  if (!max_bytes || *max_bytes < 4)
    throw UsageError(
        concat("--max-bytes ", options.max_bytes, ": write a size of at least 4 bytes, e.g. 4MiB"));
  World world(options.ranks > 0 ? options.ranks
                                : std::max(2, capture_environment().usable_threads));
  if (world.size() < 2)
    throw UsageError("a communicator needs two ranks: use mpirun -np 2 or --ranks 2");
  if (*max_bytes < 4 * world.size())
    throw UsageError(concat("--max-bytes ", options.max_bytes, " is less than a gather of ",
                            world.size(), " ranks, 4 bytes each: use ", 4 * world.size(),
                            " or more"));
  // Two buffers of a rank, and what the transport copies.
  const double needed = 4.0 * double(*max_bytes) * world.ranks_on_this_machine();
  if (const double memory = double(capture_environment().memory_limit_bytes); needed > memory)
    throw UsageError(concat("--max-bytes ", options.max_bytes, ": ", world.ranks_on_this_machine(),
                            " ranks need ", format_bytes(needed), ", this machine has ",
                            format_bytes(memory), "\n  hint: --max-bytes ",
                            int64_t(memory / 4 / world.ranks_on_this_machine())));
  if (world.is_root())
    std::cout
        << "# " << world.size() << " ranks (" << world.transport()
        << "); time is the median over runs, from the first rank's begin to the last one's end;\n"
        << "# the data of every line were verified before it was timed\n"
        << "# what            bytes     time_us   algbw_GBs   busbw_GBs       n   ci_pct\n";
  world.run(world.size(), [&](Communicator& comm) {
    CommBench bench(comm);
    for (int64_t bytes = 4; bytes <= *max_bytes; bytes *= 4) bench.point_to_point(bytes);
    for (int64_t bytes = 4 * comm.size(); bytes <= *max_bytes; bytes *= 4) bench.all_gather(bytes);
    for (int64_t bytes = 4 * comm.size(); bytes <= *max_bytes; bytes *= 4) bench.all_to_all(bytes);
  });
  return kOk;
}

}  // namespace longnet
