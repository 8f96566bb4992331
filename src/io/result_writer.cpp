#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "io/durable_file.h"
#include "io/result.h"
#include "io/result_json.h"
#include "io/units.h"
#include "json/text.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

void sync_folder(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // some file systems do not open folders; the rename itself was done
  ::fsync(fd);
  ::close(fd);
}

// Readers see the old file or the new one, never half of it.
void replace_file(const std::string& directory, const std::string& name, const std::string& text) {
  const std::string target = (fs::path(directory) / name).string(), temporary = target + ".tmp";
  DurableFile(temporary, O_WRONLY | O_CREAT | O_TRUNC).write_all(text);
  const int rc = std::rename(temporary.c_str(), target.c_str());
  check(rc == 0, "cannot rename ", temporary, ": ", std::strerror(errno));
  sync_folder(directory);
}

std::string fresh_directory(const WriterOptions& o) {
  if (!o.directory.empty()) {
    if (fs::exists(o.directory) && (!fs::is_directory(o.directory) || !fs::is_empty(o.directory)))
      throw UsageError(concat("'", o.directory,
                              "' is not empty\n  hint: results are never overwritten; name "
                              "another folder, or go on with --resume ",
                              o.directory));
    fs::create_directories(o.directory);
    return o.directory;
  }
  const std::string base =
      (fs::path(o.root) / concat(utc_compact(), "-", o.run.name, "-", o.build.revision)).string();
  fs::create_directories(o.root);
  // Two runs may start within one second.
  for (int i = 1;; ++i) {
    const std::string directory = i == 1 ? base : concat(base, "-", i);
    if (fs::create_directory(directory)) return directory;
    check(i < 1000, "cannot create ", directory);
  }
}

// "transport: mpi, now threads" for each thing that decides a number and is known on both sides.
std::vector<std::string> machine_changes(const Result& then, const WriterOptions& now) {
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
void accept_changes(Result& then, const WriterOptions& now, bool allow_changed_machine) {
  if (then.run.config_sha256 != now.run.config_sha256)
    throw UsageError(concat(
        "'", then.path, "' was started with another config (SHA-256 ",
        then.run.config_sha256.substr(0, 12), "..., now ", now.run.config_sha256.substr(0, 12),
        "...)\n  hint: use the same file, --set, --mode and --transport, or start a new "
        "run"));
  std::vector<std::string> changes = machine_changes(then, now);
  if (!changes.empty() && !allow_changed_machine)
    throw UsageError(concat("'", then.path, "' was started on another machine or build\n  ",
                            join(changes, "\n  "),
                            "\n  hint: launch it as before, or start a new run; "
                            "--allow-changed-machine mixes both in one result"));
  if (then.run.filter != now.run.filter)
    changes.push_back(concat("filter: '", then.run.filter, "', now '", now.run.filter, "'"));
  if (!changes.empty()) then.run.resumed.push_back(concat(utc_rfc3339(), " ", join(changes, "; ")));
  then.run.planned = std::max(then.run.planned, now.run.planned);
}

}  // namespace

struct ResultWriter::State {
  Result result;
  std::string directory;
  std::unique_ptr<DurableFile> lines;
};

ResultWriter::ResultWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
ResultWriter::ResultWriter(ResultWriter&&) noexcept = default;
ResultWriter& ResultWriter::operator=(ResultWriter&&) noexcept = default;
ResultWriter::~ResultWriter() = default;

ResultWriter ResultWriter::create(WriterOptions options) {
  auto state = std::make_unique<State>();
  try {
    state->directory = fresh_directory(options);
  } catch (const fs::filesystem_error& e) {
    throw UsageError(concat("cannot create the folder of results: ", e.what(),
                            "\n  hint: name a writable one with -o"));
  }
  Result& r = state->result;
  r.path = state->directory;
  r.run = std::move(options.run);
  r.run.started_utc = utc_rfc3339();
  r.build = std::move(options.build);
  r.environment = std::move(options.environment);
  r.ranks = std::move(options.ranks);
  replace_file(state->directory, "run.json", manifest_to_json(r));
  state->lines = std::make_unique<DurableFile>(
      (fs::path(state->directory) / "points.jsonl").string(), O_WRONLY | O_CREAT | O_APPEND);
  return ResultWriter(std::move(state));
}

ResultWriter ResultWriter::resume(const std::string& directory, const WriterOptions& now,
                                  bool allow_changed_machine) {
  auto state = std::make_unique<State>();
  state->directory = directory;
  const fs::path folder(directory);
  if (!fs::exists(folder / "run.json"))
    throw UsageError(concat("'", directory,
                            "' holds no run.json, so there is nothing to resume\n  hint: "
                            "name the folder that a run printed, e.g. results/<utc>-<name>-<rev>"));
  // run.json, not result.json: points.jsonl is the truth.
  const std::string manifest = (folder / "run.json").string(),
                    lines = (folder / "points.jsonl").string();
  state->result = read_manifest(manifest);
  state->result.path = directory;
  const std::string before = manifest_to_json(state->result);
  accept_changes(state->result, now, allow_changed_machine);
  PointLines read = read_point_lines(lines);
  if (const std::string after = manifest_to_json(state->result); after != before)
    replace_file(directory, "run.json", after);
  for (PointRecord& p : read.points) put_record(state->result.points, std::move(p));
  state->lines = std::make_unique<DurableFile>(lines, O_WRONLY | O_CREAT | O_APPEND);
  state->lines->truncate(read.good_bytes);
  return ResultWriter(std::move(state));
}

const std::string& ResultWriter::directory() const { return state_->directory; }

const std::vector<PointRecord>& ResultWriter::records() const { return state_->result.points; }

bool ResultWriter::finished(std::string_view id) const {
  for (const PointRecord& r : state_->result.points)
    if (r.id == id) return r.status != PointStatus::kError;
  return false;
}

std::vector<std::string> ResultWriter::finished_ids() const {
  std::vector<std::string> ids;
  for (const PointRecord& r : state_->result.points)
    if (finished(r.id)) ids.push_back(r.id);
  return ids;
}

const PointRecord& ResultWriter::append(PointRecord record) {
  validate_record(record);
  state_->lines->write_all(record_to_json(record) + "\n");
  const std::string id = record.id;
  put_record(state_->result.points, std::move(record));
  for (const PointRecord& r : state_->result.points)
    if (r.id == id) return r;
  return state_->result.points.back();
}

Summary ResultWriter::finish(int64_t planned) {
  Result& r = state_->result;
  r.run.finished_utc = utc_rfc3339();
  r.summary = summarize(r.points, std::max(planned, r.run.planned));
  if (const std::string timelines = timelines_to_lines(r); !timelines.empty())
    replace_file(state_->directory, "timelines.jsonl", timelines);
  else
    fs::remove(fs::path(state_->directory) / "timelines.jsonl");
  replace_file(state_->directory, "result.json", result_to_json(r));
  return r.summary;
}

}  // namespace longnet
