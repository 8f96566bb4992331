// `lnbench comm`: measures transports without attention, in the terms of nccl-tests
// (doc/PERFORMANCE.md there): algorithm bandwidth = size / time, where size is what one rank has
// after a gather (or gives to an exchange); bus bandwidth = algorithm bandwidth * (P - 1) / P, the
// rate of the links whatever P is.
// Every operation and size is first run once on known data: what arrives wrong ends the command.
#include <algorithm>
#include <filesystem>

#include "comm/comm_operations.h"
#include "core/check.h"
#include "core/cuda/device.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "measure/machine_load.h"
#include "run/backend.h"
#include "run/rank_clock.h"
#include "run/watchdog.h"

namespace longnet {
namespace {

constexpr int kWarmup = 3;  // a first message to a peer sets up its connection
constexpr double kTimeBudget_s = 5;

struct CommRow {
  CommOperation operation{};
  int64_t bytes = 0;
  int repeats = 1;      // operations per sample
  SampleSet samples{};  // of `repeats` operations
  double bus = 1;       // bus over algorithm bandwidth
  double scale() const { return 1.0 / repeats; }
  double seconds() const { return samples.interval.median * scale(); }
  double algorithm_bytes_per_s() const { return double(bytes) / seconds(); }
};

std::vector<Column<CommRow>> comm_columns() {
  using enum Shown;
  using R = const CommRow&;
  const auto timed = [](R r) { return !r.samples.samples_s.empty(); };
  return {
      {"operation", "", kText, 11, 0, [](R r) { return to_string(r.operation); }},
      {"bytes", "size", kBytes, 8, 0, [](R r) { return r.bytes; }},
      {"median_s", "time", kSeconds, 9, 0,
       [=](R r) { return timed(r) ? JsonNode(r.seconds()) : JsonNode(); }},
      {"algorithm_bytes_per_s", "algbw B/s", kCount, 10, 0,
       [=](R r) { return timed(r) ? JsonNode(r.algorithm_bytes_per_s()) : JsonNode(); }},
      {"bus_bytes_per_s", "busbw B/s", kCount, 10, 0,
       [=](R r) { return timed(r) ? JsonNode(r.algorithm_bytes_per_s() * r.bus) : JsonNode(); }},
      {"samples", "n", kNumber, 4, 0, [](R r) { return r.samples.samples_s.size(); }},
      {"ci_share", "ci", kPercent, 7, 0,
       [](R r) {  // one sample says nothing about the next
         return r.samples.samples_s.size() > 1 ? JsonNode(r.samples.interval.relative_half_width())
                                               : JsonNode();
       }},
      {"note", "", kNote, 0, 0,
       [=](R r) { return timed(r) ? "" : "no sample within the time budget"; }},
  };
}

class CommBench {
 public:
  CommBench(CommOperations& operations, Watchdog& watchdog, Table<CommRow>& table)
      : operations_(operations),
        watchdog_(watchdog),
        table_(table),
        clock_(operations.host(), gather(operations.host(), this_place())) {}

  // Sizes from the smallest to `max_bytes`, each four times the one before.
  void measure(CommOperation what, int64_t max_bytes) {
    const int ranks = operations_.host().size();
    const bool pair = is_point_to_point(what);
    for (int64_t bytes = pair ? 4 : 4 * ranks; bytes <= max_bytes; bytes *= 4) {
      CommRow row{.operation = what, .bytes = bytes, .bus = pair ? 1 : double(ranks - 1) / ranks};
      watchdog_.expect(concat(to_string(what), " of ", bytes, " bytes"), 60 + 4 * kTimeBudget_s);
      verify(operations_, what, bytes);
      const int runs = operations_.repeats_of(bytes);
      row.repeats = runs * (what == CommOperation::kSendRecv ? 2 : 1);  // half a round trip counts
      row.samples = sample({.warmup = kWarmup,
                            .min_samples = 10,
                            .max_samples = 40,
                            .target_ci = 0.05,
                            .time_budget_s = kTimeBudget_s},
                           hooks(what, bytes, runs));
      watchdog_.rest();
      if (operations_.host().rank() == 0) table_.add(row);
      rows_.push_back(std::move(row));
    }
  }

  const std::vector<CommRow>& rows() const { return rows_; }

 private:
  SampleHooks hooks(CommOperation what, int64_t bytes, int runs) {
    SampleHooks hooks = clock_.hooks([=, this] { operations_.run(what, bytes, runs); });
    if (operations_.device_seconds()) {  // each device has a clock of its own
      hooks.prepare = [this] { operations_.stream_barrier(); };
      hooks.over_ranks = [this](const RunSpan&) {
        return operations_.host().max_of(*operations_.device_seconds());
      };
    }
    return hooks;
  }

  CommOperations& operations_;
  Watchdog& watchdog_;
  Table<CommRow>& table_;
  RankClock clock_;
  std::vector<CommRow> rows_;
};

JsonNode to_node(const CommRow& row) {
  const auto bound = [&](double seconds) {
    return row.samples.samples_s.size() > 1 ? JsonNode(seconds * row.scale()) : JsonNode();
  };
  std::vector<double> samples;
  for (const double s : row.samples.samples_s) samples.push_back(s * row.scale());
  JsonNode node = JsonNode::object({{"operation", to_string(row.operation)},
                                    {"bytes", row.bytes},
                                    {"operations_per_sample", row.repeats},
                                    {"samples_s", to_json(samples)}});
  if (samples.empty()) return node.set("reason", "no sample within the time budget");
  node.set("median_s", row.seconds()).set("ci_low_s", bound(row.samples.interval.low));
  node.set("ci_high_s", bound(row.samples.interval.high));
  node.set("ci_level", row.samples.interval.level);
  node.set("algorithm_bytes_per_s", row.algorithm_bytes_per_s());
  return node.set("bus_bytes_per_s", row.algorithm_bytes_per_s() * row.bus);
}

// Measurements, and the ranks that took part.
struct CommResult {
  std::string transport{};
  std::vector<RankInfo> ranks{};
  std::vector<std::string> gpus{};  // of ranks on GPUs
  std::vector<CommRow> rows{};
};

void write_json(const std::filesystem::path& file, const World& world, double busy_share,
                const CommResult& result) {
  JsonNode rows = JsonNode::array(), places = JsonNode::array();
  for (const CommRow& row : result.rows) rows.push(to_node(row));
  const bool on_devices = result.transport != world.transport();
  for (const RankInfo& rank : result.ranks) {
    JsonNode place = JsonNode::object(
        {{"rank", rank.rank}, {"hostname", rank.hostname}, {"device", rank.device}});
    if (on_devices) place.set("gpu", result.gpus.at(size_t(rank.rank)));
    places.push(place);
  }
  const JsonNode root =
      JsonNode::object({{"program", "lnbench comm"},
                        {"build", to_json(build_info())},
                        {"environment", to_json(environment_of(world, busy_share, on_devices))},
                        {"transport", result.transport},
                        {"host_transport", world.transport()},
                        {"ranks", world.size()},
                        {"places", places},
                        {"rows", rows}});
  write_file(file, dump_json(root, 2) + "\n", ": choose another place by --json");
}

int64_t max_bytes_of(const Options& options, bool on_devices) {
  const std::string text = !options.max_bytes.empty() ? options.max_bytes
                           : on_devices               ? "256MiB"
                                                      : "4MiB";
  const auto bytes = try_parse_bytes(text);
  if (!bytes || *bytes < 4)
    throw UsageError("--max-bytes ", text,
                     ": write a size of at least 4 bytes with its unit, e.g. 4KiB or 4MiB");
  return *bytes;
}

int default_ranks(bool on_devices) {
  return std::max(2, on_devices ? int(describe_devices().devices.size())
                                : capture_environment().usable_threads);
}

// Why these ranks cannot do it on this machine; "" when they can.
std::string why_no_room(const World& world, int64_t max_bytes) {
  if (max_bytes < 4 * int64_t{world.size()})
    return concat("--max-bytes ", format_bytes(double(max_bytes)), " is less than a gather of ",
                  world.size(), " ranks, 4 bytes each: use ", 4 * world.size(), " or more");
  // Two buffers of a rank, what the transport copies and what the data are compared with.
  const double needed = 4.0 * double(max_bytes) * world.ranks_on_this_machine();
  if (const double memory = double(capture_environment().memory_limit_bytes); needed > memory)
    return concat("--max-bytes ", format_bytes(double(max_bytes)), ": ",
                  world.ranks_on_this_machine(), " ranks need ", format_bytes(needed),
                  ", this machine has ", format_bytes(memory), "\n  hint: --max-bytes ",
                  int64_t(memory / 4 / world.ranks_on_this_machine()));
  return "";
}

}  // namespace

int run_comm(const Options& options) {
  const bool on_devices = options.comm_transport != "host";
  const int64_t max_bytes = max_bytes_of(options, on_devices);
  const double busy = measure_busy_share();
  World world(options.ranks > 0 ? options.ranks : default_ranks(on_devices));
  if (world.size() < 2)
    throw UsageError("a communicator needs two ranks: use mpirun -np 2 or --ranks 2");
  std::string why_not = why_no_room(world, max_bytes);
  if (const auto folder = std::filesystem::path(options.json).parent_path();
      world.is_root() && !folder.empty() && !std::filesystem::is_directory(folder))
    why_not = concat("cannot write ", options.json, ": there is no folder ", folder.string(),
                     "\n  hint: make it, or choose another --json");
  if (const DeviceReport report = describe_devices(); on_devices && !report.unusable.empty())
    why_not = concat("--transport ", options.comm_transport, ": ", report.unusable);
  for (const std::string& text : world.all_texts(why_not))  // a reason of some rank stops all
    if (!text.empty()) throw UsageError(text);
  const auto ranks = describe_ranks(world, world.threads_per_rank(), on_devices);
  Watchdog watchdog(world.rank());
  const CommResult result = world.run([&](Communicator& comm) {
    const auto operations = on_devices
                                ? operations_on_device(options.comm_transport, comm, max_bytes)
                                : make_host_operations(comm, max_bytes);
    watchdog.rest();
    const auto gpus = on_devices ? devices_of_ranks(comm) : std::vector<std::string>();
    Table<CommRow> table(comm_columns(), table_style(options));
    if (comm.rank() == 0) {
      table.note(concat(comm.size(), " ranks (", operations->transport(),
                        "); time is the median over runs, ",
                        on_devices ? "of the device that took longest"
                                   : "from the first rank's begin to the last one's end"));
      table.note("the data of every line were verified before it was timed");
      table.head();
    }
    CommBench bench(*operations, watchdog, table);
    for (const CommOperation what : kCommOperations) bench.measure(what, max_bytes);
    if (comm.rank() == 0) table.finish();
    return CommResult{std::string(operations->transport()), ranks, gpus, bench.rows()};
  });
  if (world.is_root() && !options.json.empty()) write_json(options.json, world, busy, result);
  return kOk;
}

}  // namespace longnet
