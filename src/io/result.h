// One run on disk: run.json first, then a sealed line of points.jsonl per point as it ends; at the
// end timelines.jsonl, {"id": ..., "timeline": [...]} a line, and result.json, which holds the
// points without their timelines.
//
//   auto writer = ResultWriter::create({.run = run, .environment = env});   // rank 0 only
//   for (const Point& p : points)
//     if (!writer.finished(p.id)) writer.append(measure(p));
//   Summary s = writer.finish(points.size());
//
// A run that is killed leaves run.json and points.jsonl, which is the truth; read_result and resume
// take that. A result that has ended is whole without them: result.json and timelines.jsonl.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/durable_file.h"
#include "io/environment.h"
#include "io/record.h"
#include "io/summary.h"

namespace longnet {

// The model, memory and text of a run of `lnbench train`; its steps stand in train.jsonl.
struct TrainingInfo {
  PointParams point{};
  int64_t parameters = 0;
  int64_t trained_bytes = 0, held_out_bytes = 0;  // the text's
  std::string text_sha256{};
  std::map<std::string, int64_t> memory_by_tag{};  // on the rank with the most
  static void fields(auto& t, auto&& visit) {
    visit("point", t.point);
    visit("parameters", t.parameters);
    visit("trained_bytes", t.trained_bytes);
    visit("held_out_bytes", t.held_out_bytes);
    visit("text_sha256", t.text_sha256, {.later = true});
    visit("memory_by_tag", t.memory_by_tag);
  }
};

struct RunInfo {
  std::string name{};  // the config's
  std::string description{};
  std::string command{};  // as typed
  std::string config_path{};
  std::string config_sha256{};
  std::string cluster_sha256{};
  std::string mode = "real";  // or "virtual", "simulated"
  std::string transport{};    // "mpi", "threads"; "" where nothing moves
  int world_size = 1;
  int64_t planned = 0;                 // points of the sweep, those skipped included; 0: not known
  std::string filter{};                // --filter, "" when there was none
  std::vector<std::string> resumed{};  // per resume that changed something: when and what
  std::string started_utc{}, finished_utc{};  // RFC 3339, set by create and by finish
  JsonNode config{};                          // resolved
  JsonNode cluster{};  // that was simulated, before any what-if; null for real runs
  std::optional<TrainingInfo> training{};
  static void fields(auto& r, auto&& visit) {
    visit("name", r.name);
    visit("description", r.description);
    visit("command", r.command);
    visit("config_path", r.config_path);
    visit("config_sha256", r.config_sha256);
    visit("cluster_sha256", r.cluster_sha256, {.omit = true});
    visit("mode", r.mode);
    visit("transport", r.transport, {.null = true});
    visit("world_size", r.world_size);
    visit("planned", r.planned);
    visit("filter", r.filter);
    visit("resumed", r.resumed, {.omit = true});
    visit("started_utc", r.started_utc);
    visit("finished_utc", r.finished_utc, {.null = true});
    visit("config", r.config);
    visit("cluster", r.cluster, {.omit = true});
    visit("training", r.training, {.omit = true});
  }
};

struct RankInfo {
  int rank = 0;
  std::string hostname{};
  int cores = 0;         // usable by this rank
  std::string device{};  // "" for CPU
  static void fields(auto& r, auto&& visit) {
    visit("rank", r.rank);
    visit("hostname", r.hostname);
    visit("cores", r.cores);
    visit("device", r.device, {.null = true});
  }
};

struct Result {
  std::string path{};  // folder or file that was read
  RunInfo run{};
  BuildInfo build = build_info();
  Environment environment{};
  std::vector<RankInfo> ranks{};
  std::vector<PointRecord> points{};
  Summary summary{};
  static void fields(auto& r, auto&& visit) {  // those of the head
    visit("run", r.run);
    visit("build", r.build);
    visit("environment", r.environment);
    visit("ranks", r.ranks);
  }
};

// Reads the result in a folder (result.json; while running run.json + points.jsonl) or a file.
// Throws UsageError.
Result read_result(const std::string& path);
std::string result_to_json(const Result& result);  // one line a point, no timelines

// Holds the folder of a run for a rank that does not write, until the file is closed: nobody else
// may resume it meanwhile. Null where this machine does not see the folder.
std::unique_ptr<DurableFile> join_run(const std::string& directory);

using RecordPlaces = std::unordered_map<std::string, size_t>;  // id -> index

class ResultWriter {
 public:
  // Starts a result in `head.path`, which must be absent or empty, or where that is "" in a new
  // folder <utc>-<name>-<rev> of `root`. `head`: what is known before the first point.
  static ResultWriter create(Result head, const std::string& root = "results");
  // Goes on in `directory`; `now` is what create would be given (its path unused). Throws
  // UsageError when the config differs from the one the run was started with; and, unless
  // `allow_changed_machine`, when transport, world size, host or revision do: numbers of two
  // machines do not belong into one result. Changes that are let through stand in run.resumed.
  // `alone`: refused while another process works on the folder; false: with the other ranks.
  static ResultWriter resume(const std::string& directory, const Result& now,
                             bool allow_changed_machine = false, bool alone = true);

  const std::string& directory() const { return result_.path; }
  // Recorded before, and not an `error` (those are worth another try).
  bool finished(std::string_view id) const;
  // A writer begins alone, and shares with the other ranks of its run (join_run) before they join.
  // Throws UsageError when someone else has the folder.
  void lock(bool alone);
  // The last one per id, in the order of first appearance.
  const std::vector<PointRecord>& records() const { return result_.points; }

  // Validates, writes a line, flushes it to the disk. Returns what was written: the validated one.
  const PointRecord& append(PointRecord record);
  // Writes timelines.jsonl and result.json; may be called again after more points. A run that began
  // with more points than `planned` (another filter) is incomplete until those are recorded.
  Summary finish(int64_t planned);

 private:
  explicit ResultWriter(Result result);
  Result result_;
  RecordPlaces places_;
  std::unique_ptr<DurableFile> lines_;
};

// Where a run puts its result.
struct RunTarget {
  Result head;           // known before the first point
  std::string resume{};  // the folder of an earlier run; "": a new one in head.path
  bool allow_changed_machine = false;
  ResultWriter open() const {
    return resume.empty() ? ResultWriter::create(head)
                          : ResultWriter::resume(resume, head, allow_changed_machine);
  }
};

}  // namespace longnet
