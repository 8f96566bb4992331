#include "io/result.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/check.h"
#include "io/sha256.h"
#include "io/units.h"
#include "json/json_reader.h"
#include "json/text.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

// run.json: everything but points and summary.
JsonNode head_node(const Result& r) {
  return write_fields(r, JsonNode::object({{"schema_version", 1}}));
}

Result head_from(const JsonNode& n) {
  if (n.whole("schema_version") != 1 || !n.find("run"))
    throw UsageError(n.where(),
                     ": this is no result of lnbench (schema_version 1)\n  hint: name a folder "
                     "under results/ or its result.json");
  Result r{.build = {}};
  read_fields(n, r);
  if (r.run.transport == "virtual" || r.run.transport == "simulated") {  // before there were modes
    r.run.mode = r.run.transport;
    r.run.transport.clear();
  }
  return r;
}

std::string read_text(const std::string& path) {
  return read_file_text(path, "is it a folder of results?");
}

Result read_manifest(const fs::path& folder) {
  const std::string path = (folder / "run.json").string();
  return head_from(parse_json(read_text(path), path));
}

std::string manifest_to_json(const Result& result) { return dump_json(head_node(result), 1); }

// timelines.jsonl; "" when no point has a timeline.
std::string timelines_to_lines(const Result& result) {
  std::string lines;
  for (const PointRecord& r : result.points) {
    if (r.timeline.empty()) continue;
    lines += dump_json(JsonNode::object({{"id", r.id}, {"timeline", to_json(r.timeline)}})) + "\n";
  }
  return lines;
}

// Replaces the record with the same id, else appends. `places`: of each id in `records`.
PointRecord& put_record(std::vector<PointRecord>& records, RecordPlaces& places,
                        PointRecord record) {
  const auto [place, is_new] = places.try_emplace(record.id, records.size());
  if (is_new) return records.emplace_back(std::move(record));
  return records[place->second] = std::move(record);
}

// Throws UsageError when a line was changed after it was written. `strict`: also without a seal (of
// an older build), or when its id is not that of its parameters.
void check_line(const std::string& line, const PointRecord& record, bool strict) {
  if (!seal_holds(line).value_or(!strict))
    throw UsageError("it was changed after it was written, or an older build wrote it");
  PointParams planned = record.params;
  planned.threads = 0;  // left to the launcher, which chose some
  if (strict && record.id != point_id(record.params) && record.id != point_id(planned))
    throw UsageError("the id ", record.id, " is not that of its params");
}

// Reads the whole lines of a points.jsonl. A torn last line is left out; returns the bytes before.
int64_t read_point_lines(const fs::path& folder, std::vector<PointRecord>& records,
                         RecordPlaces& places, bool strict = false) {
  const std::string path = (folder / "points.jsonl").string();
  if (!fs::exists(path)) return 0;
  int number = 0;
  return take_lines(read_text(path), [&](const std::string& line, bool is_last) {
    ++number;
    try {
      if (!line.empty()) {
        const PointRecord record = record_from_json(line);
        check_line(line, record, strict);
        put_record(records, places, record);
      }
    } catch (const UsageError& e) {
      if (!is_last || seal_holds(line))  // no torn write
        throw UsageError(path, ":", number, ": damaged line ", number,
                         " of points.jsonl; delete that line to measure the point again\n  ",
                         e.what());
      return false;
    }
    return true;
  });
}

// Id -> timeline, from the lines of a timelines.jsonl; none where there is no such file.
std::map<std::string, JsonNode> read_timelines(const std::string& path) {
  std::map<std::string, JsonNode> timelines;
  if (!fs::exists(path)) return timelines;
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);) {
    JsonNode n = parse_json(line, path);
    timelines[n.text("id")] = n.take("timeline");
  }
  return timelines;
}

constexpr std::string_view kDamaged =
    "\n  hint: the file is damaged; without it, its folder is read from points.jsonl";

// A result.json and the timelines beside it. Older results hold the timelines themselves.
Result read_result_file(const std::string& path) {
  JsonNode n = parse_json(read_text(path), path);
  Result r = head_from(n);
  const auto timelines =
      read_timelines(fs::path(path).replace_filename("timelines.jsonl").string());
  JsonNode points = n.take("points");
  if (!points.is_array() || !has_kind<std::vector<PointRecord>>(points))
    throw UsageError(path, ": points: must be a list of objects", kDamaged);
  for (JsonNode& point : points.items) {
    const auto timeline = timelines.find(point.text("id"));
    if (timeline != timelines.end()) point.set("timeline", timeline->second);
    r.points.push_back(record_from(point));
  }
  if (const JsonNode* summary = n.find("summary")) {
    if (!has_kind<Summary>(*summary))
      throw UsageError(path, ": summary: must be an object", kDamaged);
    from_json(*summary, r.summary);
  }
  return r;
}

// A run that was killed before its run.json stood may have left half of it.
bool is_empty_folder(const fs::path& path) {
  return fs::is_directory(path) &&
         std::ranges::all_of(fs::directory_iterator(path),
                             [](const auto& e) { return e.path().filename() == "run.json.tmp"; });
}

std::string fresh_directory(const Result& head, const std::string& root) {
  if (const std::string& own = head.path; !own.empty()) {
    if (fs::exists(own) && !fs::is_directory(own))
      throw UsageError("'", own,
                       "' is a file, not a folder\n  hint: a result is a folder: choose another "
                       "name");
    if (fs::exists(own) && !is_empty_folder(own))
      throw UsageError("'", own,
                       "' is not empty\n  hint: results are never overwritten; choose another "
                       "name, or ",
                       head.run.mode == "simulated" ? "delete it" : "go on with --resume " + own);
    fs::create_directories(own);
    return own;
  }
  const std::string base =
      (fs::path(root) / concat(utc_compact(), "-", head.run.name, "-", head.build.revision))
          .string();
  fs::create_directories(root);
  // Two runs may start within one second.
  for (int i = 1;; ++i) {
    const std::string directory = i == 1 ? base : concat(base, "-", i);
    if (fs::create_directory(directory)) return directory;
    check(i < 1000, "cannot create ", directory);
  }
}

// "transport: mpi, now threads" for each thing that decides a number and is known on both sides.
std::vector<std::string> machine_changes(const Result& then, const Result& now) {
  std::vector<std::string> changes;
  const auto compare = [&](const char* what, const std::string& was, const std::string& is) {
    if (!was.empty() && !is.empty() && was != is)
      changes.push_back(concat(what, ": ", was, ", now ", is));
  };
  compare("mode", then.run.mode, now.run.mode);
  compare("transport", then.run.transport, now.run.transport);
  compare("world size", std::to_string(then.run.world_size), std::to_string(now.run.world_size));
  compare("host", then.environment.hostname, now.environment.hostname);
  compare("GPUs", join(then.environment.devices, ", "), join(now.environment.devices, ", "));
  compare("revision", then.build.revision, now.build.revision);
  return changes;
}

// Refuses what must not change, and notes in the manifest what did.
void accept_changes(Result& then, const Result& now, bool allow_changed_machine) {
  if (then.run.config_sha256 != now.run.config_sha256)
    throw UsageError(
        "'", then.path, "' was started with another config (SHA-256 ",
        then.run.config_sha256.substr(0, 12), "..., now ", now.run.config_sha256.substr(0, 12),
        "...)\n  hint: use the same file, --set, --mode and --transport, or start a new run");
  const auto text_of = [](const Result& r) {
    return r.run.training ? r.run.training->text_sha256 : "";
  };
  if (const std::string was = text_of(then), is = text_of(now); !was.empty() && was != is)
    throw UsageError("'", then.path, "' was trained on another text (SHA-256 ", was.substr(0, 12),
                     "..., now ", is.substr(0, 12),
                     "...)\n  hint: put the files of train.text back, or start a new run");
  std::vector<std::string> changes = machine_changes(then, now);
  if (!changes.empty() && !allow_changed_machine)
    throw UsageError("'", then.path, "' was started on another machine or build\n  ",
                     join(changes, "\n  "),
                     "\n  hint: launch it as before, or start a new run; --allow-changed-machine "
                     "mixes both in one result");
  if (then.run.filter != now.run.filter)
    changes.push_back(concat("filter: '", then.run.filter, "', now '", now.run.filter, "'"));
  if (!changes.empty()) then.run.resumed.push_back(concat(utc_rfc3339(), " ", join(changes, "; ")));
  then.run.planned = std::max(then.run.planned, now.run.planned);
}

}  // namespace

std::string result_to_json(const Result& result) {
  JsonNode n = head_node(result), points = JsonNode::array();
  for (const PointRecord& r : result.points) {
    JsonNode point = to_json(r);
    point.take("timeline");
    points.push(std::move(point));
  }
  n.set("points", std::move(points)).set("summary", to_json(result.summary));
  return dump_json(n, 1) + "\n";
}

Result read_result(const std::string& path) {
  const bool folder = fs::is_directory(path);
  const std::string file = folder ? (fs::path(path) / "result.json").string() : path;
  const bool ended = !folder || fs::exists(file);
  Result r = ended ? read_result_file(file) : read_manifest(path);
  r.path = path;
  if (ended) return r;
  RecordPlaces places;
  read_point_lines(path, r.points, places);
  const int64_t unknown = int64_t(r.points.size()) + 1;
  r.summary = summarize(r.points, r.run.planned > 0 ? r.run.planned : unknown);
  return r;
}

ResultWriter::ResultWriter(Result result) : result_(std::move(result)) {
  const std::string path = (fs::path(directory()) / "points.jsonl").string();
  lines_ = std::make_unique<DurableFile>(path, O_WRONLY | O_CREAT | O_APPEND);
}

void ResultWriter::lock(bool alone) {
  if (!lines_->lock(alone))
    throw UsageError("'", directory(),
                     "' is in use: another lnbench, or a rank that one left over, still works on "
                     "it\n  hint: wait for it, or end it (fuser ",
                     directory(), "/points.jsonl names it)");
}

std::unique_ptr<DurableFile> join_run(const std::string& directory) {
  const std::string path = (fs::path(directory) / "points.jsonl").string();
  if (!fs::exists(path)) return nullptr;
  auto lines = std::make_unique<DurableFile>(path, O_RDONLY);
  lines->lock(/*alone=*/false);
  return lines;
}

ResultWriter ResultWriter::create(Result head, const std::string& root) {
  try {
    head.path = fresh_directory(head, root);
  } catch (const fs::filesystem_error& e) {
    throw UsageError("cannot create the folder of results: ", e.what(),
                     "\n  hint: name a writable one with -o");
  }
  head.run.started_utc = utc_rfc3339();
  replace_file(head.path, "run.json", manifest_to_json(head));
  ResultWriter writer(std::move(head));
  writer.lock(/*alone=*/true);
  return writer;
}

ResultWriter ResultWriter::resume(const std::string& directory, const Result& now,
                                  bool allow_changed_machine, bool alone) {
  const fs::path manifest = fs::path(directory) / "run.json";
  if (!fs::exists(manifest))
    throw UsageError("'", directory,
                     "' holds no run.json, so there is nothing to resume\n  hint: name the folder "
                     "that a run printed, e.g. results/<utc>-<name>-<rev>");
  const fs::path folder = (fs::path(directory) / "").parent_path();  // "a/" is "a"
  for (const fs::path& path : {folder, manifest})
    if (fs::is_symlink(path))
      throw UsageError("'", path.string(),
                       "' is a symbolic link, and a resumed run follows none\n  hint: name the "
                       "place itself: ",
                       fs::canonical(path).string());
  // run.json, not result.json: points.jsonl is the truth.
  Result then = read_manifest(directory);
  then.path = directory;
  ResultWriter writer(then);
  writer.lock(alone);
  if (sha256_hex(dump_json(then.run.config, -1, true)) != then.run.config_sha256)
    throw UsageError("'", directory, "/run.json' is damaged: its config_sha256 is not that of ",
                     "its config\n  hint: start a new run");
  const std::string before = manifest_to_json(then);
  accept_changes(then, now, allow_changed_machine);
  const int64_t good_bytes =
      read_point_lines(directory, then.points, writer.places_, /*strict=*/true);
  if (const std::string after = manifest_to_json(then); after != before)
    replace_file(directory, "run.json", after);
  writer.result_ = std::move(then);
  writer.lines_->truncate(good_bytes);
  return writer;
}

bool ResultWriter::finished(std::string_view id) const {
  const auto found = places_.find(std::string(id));
  return found != places_.end() && records()[found->second].status != PointStatus::kError;
}

const PointRecord& ResultWriter::append(PointRecord record) {
  validate_record(record);
  lines_->write_all(sealed(record_to_json(record)) + "\n");
  return put_record(result_.points, places_, std::move(record));
}

Summary ResultWriter::finish(int64_t planned) {
  check(places_.size() == records().size(), "a point stands twice in ", directory());
  result_.run.finished_utc = utc_rfc3339();
  result_.summary = summarize(records(), std::max(planned, result_.run.planned));
  if (const std::string timelines = timelines_to_lines(result_); !timelines.empty())
    replace_file(directory(), "timelines.jsonl", timelines);
  else
    fs::remove(fs::path(directory()) / "timelines.jsonl");
  replace_file(directory(), "result.json", result_to_json(result_));
  return result_.summary;
}

}  // namespace longnet
