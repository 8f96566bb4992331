#include "lnbench/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "comm/host_transport.h"
#include "core/check.h"
#include "core/stopwatch.h"
#include "io/units.h"
#include "json/text.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

volatile std::sig_atomic_t stop_wanted = 0;

// Says so, since what is at work may take minutes; pressed again, the default: the end, now.
// Launchers may pass one SIGTERM on twice at once: the second counts a second later.
// (steady_seconds() is clock_gettime(), which a handler may call.)
void request_stop(int signal) {
  static volatile double first_term_s = 0;
  if (signal == SIGTERM) {
    if (first_term_s > 0 && steady_seconds() > first_term_s + 1) {
      std::signal(SIGTERM, SIG_DFL);
      raise(SIGTERM);
    }
    if (!(first_term_s > 0)) first_term_s = steady_seconds();
  }
  if (signal == SIGINT) {
    static constexpr char kText[] =
        "\nstopping when the point, shard or step at work is finished; Ctrl-C again: now (what is "
        "finished stays)\n";
    std::signal(SIGINT, SIG_DFL);  // before it is said: another thread may get the second one
    [[maybe_unused]] const ssize_t said =
        stop_wanted == 0 ? write(STDERR_FILENO, kText, sizeof kText - 1) : 0;
  }
  stop_wanted = 1;
}

// Open MPI gives its processes a pseudo-terminal even when mpirun's own output goes to a file.
bool is_terminal(int file_descriptor) {
  const char* const kind = std::getenv("TERM");
  return !launched() && isatty(file_descriptor) != 0 &&
         (kind == nullptr || std::string_view(kind) != "dumb");
}

// Opens a file to write and leaves it as it is; removes it again if it is new. Returns 0 or errno.
int write_error(const char* path) {
  if (const int made = ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); made >= 0)
    return ::close(made), ::unlink(path), 0;
  if (errno != EEXIST) return errno;
  std::error_code unknown;                                               // then it is no file
  const bool is_file = std::filesystem::is_regular_file(path, unknown);  // a pipe may wait
  const int found = is_file ? ::open(path, O_WRONLY | O_CLOEXEC) : ::access(path, W_OK);
  if (found < 0) return errno == ENOENT ? 0 : errno;  // another rank tried, too, and removed it
  if (is_file) ::close(found);
  return 0;
}

// Columns of the terminal; a longer line would wrap, and only its last part be taken away.
size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void stop_gently_on_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, request_stop);
}

bool stop_requested() { return stop_wanted != 0; }

void write_file(const std::filesystem::path& path, const std::string& text, std::string_view hint) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw UsageError("cannot write ", path.string(), hint);
}

std::string why_not_written(const std::filesystem::path& path, std::string_view option) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code unknown;
  std::string why;
  if (!std::filesystem::is_directory(folder, unknown))
    why = concat("there is no folder ", folder.string(), "\n  hint: make it, or");
  else if (std::filesystem::is_directory(path, unknown))
    why = "that is a folder\n  hint:";
  else if (const int error = write_error(path.c_str()); error != 0)
    why = concat(std::strerror(error), "\n  hint:");
  return why.empty()
             ? ""
             : concat("cannot write ", path.string(), ": ", why, " choose another ", option);
}

void check_writable(const std::filesystem::path& path, std::string_view option) {
  if (path.empty()) return;
  if (const std::string why = why_not_written(path, option); !why.empty()) throw UsageError(why);
}

std::string points_text(size_t count) { return concat(count, count == 1 ? " point" : " points"); }

void say(const std::string& line) { std::cerr << printable(line + "\n"); }

void warn(const std::vector<std::string>& warnings) {
  for (const std::string& line : warnings) say(wrapped(line, 100, "warning: ", "         "));
}

void print_notes(const Options& options, const Config& config, bool measures) {
  if (options.quiet || launched_rank() != 0) return;
  for (const std::string& note : replaced_choices(config, known_names())) say("note: " + note);
  if (measures && !config.cluster.file.empty())
    say(concat("note: ", config.path, " names the cluster ", config.cluster.file,
               ", which `lnbench simulate` takes; this measures on this machine"));
}

RunInfo run_info(const Config& config, const Options& options, size_t points) {
  return {.name = config.name,
          .description = config.description,
          .command = options.command_line,
          .config_path = config.path,
          .config_sha256 = config_sha256(config),
          .planned = int64_t(points),
          .filter = options.filter,
          .config = resolved_config(config)};
}

RunTarget run_target(const Options& options, const Sweep& sweep, int threads, World& world) {
  RunInfo run = run_info(sweep.config, options, sweep.points.size());
  run.mode = to_string(sweep.config.run.mode);
  run.transport = sweep.transport;
  run.world_size = world.size();
  return {.head = {.path = options.output,
                   .run = run,
                   .environment = environment_of(world, sweep.busy_share, sweep.on_devices()),
                   .ranks = describe_ranks(world, threads, sweep.on_devices())},
          .resume = options.resume,
          .allow_changed_machine = options.allow_changed_machine};
}

std::string same_options(const Options& o) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += concat(" ", name, " ", shell_word(value));
  };
  for (const std::string& set : o.sets) add("--set", set);
  add("--filter", o.filter);
  add("--mode", o.mode);
  add("--transport", o.transport);
  add("--replay", o.replay);
  if (o.ranks > 0) text += concat(" --ranks ", o.ranks);
  return text;
}

void print_summary(TableWriter& table, const Summary& summary, std::string_view remark,
                   const std::string& directory) {
  std::string counts;
  for (const auto& [status, count] : summary.counts)
    if (count > 0) counts += concat(counts.empty() ? "" : " ", count, " ", status);
  table.note(concat(counts, remark, "; verdict: ", summary.verdict));
  for (const auto& [id, why] : summary.disturbed)
    table.note(concat("disturbed, decides no claim about time: ", id, ": ", why));
  for (const auto& [id, why] : summary.disagreeing)
    table.note(concat("disagrees with another point: ", id, ": ", why));
  table.note("result: " + directory);
}

void print_ranks_missing(TableWriter& table, const std::vector<Point>& points, int world_size) {
  size_t beyond = 0;
  int most = 0;
  for (const Point& point : points)
    if (point.params.ranks > world_size && point.status != PointStatus::kSkippedExcluded &&
        !find_algorithm(point.params.algorithm).one_rank_only) {
      ++beyond;
      most = std::max(most, point.params.ranks);
    }
  if (beyond > 0)
    table.note(concat(points_text(beyond), beyond == 1 ? " needs" : " need",
                      " more ranks than the ", world_size,
                      " there are: ", launched() ? "" : concat("--ranks ", most, ", or "),
                      launcher_words(launched_transport(), most)));
}

TableStyle table_style(const Options& options, Progress* progress) {
  return {.format = options.format,
          .wide = options.wide,
          .out = &std::cout,
          .notes = &std::cerr,
          .before_line = [progress] {
            if (progress) progress->clear();
          }};
}

std::set<std::string> leave_out_constants(TableStyle& style, const std::vector<Point>& points) {
  Constants same = constants_of(points);
  if (style.wide || style.format != TableFormat::kText) {
    std::erase_if(same.options, [](const std::string& word) { return word != kForwardWord; });
  } else {
    style.left_out = same.columns;
    if (!same.text.empty()) style.above = "all points: " + same.text;
  }
  style.widest = widest_cells(points, same.options);
  return same.options;
}

Table<PointRecord> record_table(const Options& options, const std::vector<Point>& points,
                                Progress* progress) {
  TableStyle style = table_style(options, progress);
  const std::set<std::string> common = leave_out_constants(style, points);
  return {record_columns(common, compares_clusters(points)), style};
}

void add_record(Table<PointRecord>& table, const PointRecord& record, const Options& options) {
  const bool colour =
      options.color == "always" ||
      (options.color == "auto" && std::getenv("NO_COLOR") == nullptr && is_terminal(STDOUT_FILENO));
  table.add(record, colour ? colour_of(record.status) : "");
}

Progress::Progress(const Options& options, bool is_root, int points)
    : enabled_(is_root && !options.quiet && options.progress != ProgressStyle::kNone),
      rewrite_(options.progress == ProgressStyle::kAuto && is_terminal(STDERR_FILENO)),
      points_(points) {}

void Progress::clear() {
  if (enabled_ && rewrite_) std::cerr << "\r\x1b[K" << std::flush;
}

void Progress::write_line(const std::string& text, bool stays) {
  clear();
  const std::string line = concat("[", index_, "/", points_, "] ", text);
  if (rewrite_ && !stays)
    std::cerr << line.substr(0, terminal_columns() - 1) << std::flush;
  else
    say(line);
}

void Progress::start(int index, const std::string& what, double estimated_s) {
  index_ = index;
  what_ = what;
  last_step_s_ = steady_seconds();
  if (!enabled_ || !rewrite_) return;
  write_line(concat(what, estimated_s > 0 ? "  (about " + format_seconds(estimated_s) + ")" : ""),
             false);
}

void Progress::step(const std::string& text) {
  if (!enabled_ || (!rewrite_ && steady_seconds() - last_step_s_ < 30)) return;
  last_step_s_ = steady_seconds();
  write_line(what_ + "  " + text, false);
}

void Progress::done(const std::string& outcome, double took_s, double estimated_s,
                    double estimated_left_s, double most_left_s) {
  took_s_ += took_s;
  estimated_s_ += estimated_s;
  if (!enabled_) return;
  const double left_s =
      estimated_s_ > 0 ? std::min(estimated_left_s * took_s_ / estimated_s_, most_left_s) : 0;
  write_line(concat(outcome, left_s > 0 ? "  ETA " + format_seconds(left_s) : ""), true);
}

void Progress::note(const std::string& line) {
  if (!enabled_) return;
  clear();
  say(line);
}

}  // namespace longnet
