// `lnbench comm`: the communicator alone, in the terms of nccl-tests (doc/PERFORMANCE.md there):
//   algorithm bandwidth = size / time, where size is what one rank has after a gather (or gives to
//   an exchange); bus bandwidth = algorithm bandwidth * (P - 1) / P, the rate of the links whatever
//   P is.
// Every operation and size is first run once on known data: what arrives wrong ends the command.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>

#include "comm/verified_transfer.h"
#include "core/check.h"
#include "io/busy_share.h"
#include "io/environment.h"
#include "io/record_node.h"
#include "io/units.h"
#include "lnbench/machine.h"
#include "lnbench/options.h"
#include "lnbench/rank_clock.h"
#include "lnbench/world.h"

namespace longnet {
namespace {

constexpr int kWarmup = 3;  // a first message to a peer sets up its connection

// Short operations are timed several at once: one of them is less than a clock's and a barrier's
// own time.
int repeats_of(int64_t bytes) { return bytes < 65536 ? 50 : bytes < 1 << 20 ? 4 : 1; }

struct CommRow {
  std::string operation;
  int64_t bytes = 0;
  int repeats = 1;      // operations per sample
  SampleSet samples{};  // of `repeats` operations
  double bus = 1;       // bus over algorithm bandwidth
  double scale() const { return 1.0 / repeats; }
  double seconds() const { return samples.interval.median * scale(); }
  double algorithm_bytes_per_s() const { return double(bytes) / seconds(); }
};

class CommBench {
 public:
  explicit CommBench(Communicator& comm) : comm_(comm), clock_(comm, gather_places(comm)) {
    group_ = {.first = 0, .stride = 1, .count = comm.size()};
    comm_.open_group(group_);
  }

  void point_to_point(int64_t bytes) {  // ranks 0 and 1: half a round trip
    std::vector<std::byte> out(static_cast<size_t>(bytes)), in(static_cast<size_t>(bytes));
    verify_send_recv(comm_, out, in);
    add("send_recv", bytes, 1.0, 2, [&] {
      if (comm_.rank() == 0) {
        comm_.wait(comm_.isend(1, out));
        comm_.wait(comm_.irecv(1, in));
      } else if (comm_.rank() == 1) {
        comm_.wait(comm_.irecv(0, in));
        comm_.wait(comm_.isend(0, out));
      }
    });
  }

  void all_gather(int64_t bytes) {  // `bytes`: of the gathered whole
    const int64_t part = bytes / comm_.size() / 4 * 4;
    if (part == 0) return;
    std::vector<std::byte> all(size_t(part * comm_.size()));
    const std::vector<int64_t> counts(size_t(comm_.size()), part);
    verify_all_gather(comm_, group_, all, counts);
    add("all_gather", int64_t(all.size()), bus_factor(), 1,
        [&] { comm_.wait(comm_.iall_gather(group_, all, counts)); });
  }

  void all_to_all(int64_t bytes) {  // `bytes`: what a rank gives, its own part included
    const int64_t part = bytes / comm_.size() / 4 * 4;
    if (part == 0) return;
    std::vector<std::byte> out(size_t(part * comm_.size())), in(out.size());
    const std::vector<int64_t> counts(size_t(comm_.size()), part);
    verify_all_to_all(comm_, group_, out, in, counts);
    add("all_to_all", int64_t(out.size()), bus_factor(), 1,
        [&] { comm_.wait(comm_.iall_to_all(group_, out, counts, in, counts)); });
  }

  const std::vector<CommRow>& rows() const { return rows_; }

 private:
  double bus_factor() const { return double(comm_.size() - 1) / comm_.size(); }

  // `per_run`: operations in one call of `run`.
  void add(const char* operation, int64_t bytes, double bus, int per_run,
           const std::function<void()>& run) {
    const int runs = repeats_of(bytes);
    CommRow row{.operation = operation, .bytes = bytes, .repeats = runs * per_run, .bus = bus};
    row.samples = sample({.warmup = kWarmup,
                          .min_samples = 10,
                          .max_samples = 40,
                          .target_ci = 0.05,
                          .time_budget_s = 5},
                         clock_.hooks([&] {
                           for (int i = 0; i < runs; ++i) run();
                         }));
    if (comm_.rank() == 0) print(row);
    rows_.push_back(std::move(row));
  }

  static void print(const CommRow& row) {
    if (row.samples.samples_s.empty()) {
      std::cout << "# " << row.operation << " of " << row.bytes
                << " bytes: no sample within the time budget\n"
                << std::flush;
      return;
    }
    const double rate = row.algorithm_bytes_per_s() / 1e9;
    std::cout << std::left << std::setw(11) << row.operation << std::right << std::setw(12)
              << row.bytes << std::setw(12) << std::setprecision(4) << row.seconds() * 1e6
              << std::setw(12) << rate << std::setw(12) << rate * row.bus << std::setw(8)
              << row.samples.samples_s.size() << std::setw(10) << std::setprecision(3);
    if (row.samples.samples_s.size() > 1)
      std::cout << 100 * row.samples.interval.relative_half_width();
    else
      std::cout << "-";  // one sample says nothing about the next
    std::cout << "\n" << std::flush;
  }

  Communicator& comm_;
  RankClock clock_;
  RankGroup group_;
  std::vector<CommRow> rows_;
};

JsonNode to_node(const CommRow& row) {
  const auto bound = [&](double seconds) {
    return row.samples.samples_s.size() > 1 ? JsonNode(seconds * row.scale()) : JsonNode();
  };
  std::vector<double> samples;
  for (const double s : row.samples.samples_s) samples.push_back(s * row.scale());
  JsonNode node = JsonNode::object();
  node.set("operation", row.operation).set("bytes", row.bytes);
  node.set("operations_per_sample", row.repeats).set("samples_s", to_array(samples));
  if (samples.empty()) return node.set("reason", "no sample within the time budget");
  node.set("median_s", row.seconds()).set("ci_low_s", bound(row.samples.interval.low));
  node.set("ci_high_s", bound(row.samples.interval.high));
  node.set("ci_level", row.samples.interval.level);
  node.set("algorithm_bytes_per_s", row.algorithm_bytes_per_s());
  return node.set("bus_bytes_per_s", row.algorithm_bytes_per_s() * row.bus);
}

void write_json(const std::filesystem::path& file, const World& world, double busy_share,
                const std::vector<CommRow>& rows) {
  JsonNode root = JsonNode::object(), list = JsonNode::array();
  for (const CommRow& row : rows) list.push(to_node(row));
  root.set("build", build_to_node(build_info()));
  root.set("environment", environment_to_node(capture_environment(
                              {.mpi_version = world.mpi_version(), .busy_share = busy_share})));
  root.set("transport", world.transport()).set("ranks", world.size()).set("rows", list);
  std::ofstream out(file);
  out << dump_json(root, 2) << "\n";
  out.close();
  if (!out)
    throw UsageError(concat("cannot write ", file.string(), ": choose another place by --json"));
}

}  // namespace

int run_comm(const Options& options) {
  const auto max_bytes = try_parse_bytes(options.max_bytes);
  if (!max_bytes || *max_bytes < 4)
    throw UsageError(concat("--max-bytes ", options.max_bytes,
                            ": write a size of at least 4 bytes with its unit, e.g. 4KiB or 4MiB"));
  if (const auto folder = std::filesystem::path(options.json).parent_path();
      !folder.empty() && !std::filesystem::is_directory(folder))
    throw UsageError(concat("cannot write ", options.json, ": there is no folder ", folder.string(),
                            "\n  hint: make it, or choose another --json"));
  const double busy = measure_busy_share();
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
  std::vector<CommRow> rows;
  world.run(world.size(), [&](Communicator& comm) {
    CommBench bench(comm);
    for (int64_t bytes = 4; bytes <= *max_bytes; bytes *= 4) bench.point_to_point(bytes);
    for (int64_t bytes = 4 * comm.size(); bytes <= *max_bytes; bytes *= 4) bench.all_gather(bytes);
    for (int64_t bytes = 4 * comm.size(); bytes <= *max_bytes; bytes *= 4) bench.all_to_all(bytes);
    if (comm.rank() == 0) rows = bench.rows();
  });
  if (world.is_root() && !options.json.empty()) write_json(options.json, world, busy, rows);
  return kOk;
}

}  // namespace longnet
