// Output of commands: tables, progress with ETA, notes, colour, files.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/record_table.h"
#include "lnbench/options.h"

namespace longnet {

// Throws UsageError, with `hint` behind it.
void write_file(const std::filesystem::path& path, const std::string& text,
                std::string_view hint = "");
// Why `path` cannot be opened to write, tried without a change to it: for a command that measures
// first. Empty if it can. `option`: the one that names it.
std::string why_not_written(const std::filesystem::path& path, std::string_view option);

// Throws that as a UsageError; of "" nothing.
void check_writable(const std::filesystem::path& path, std::string_view option);

// "1 point", "2 points"
std::string points_text(size_t count);

// A line on stderr in one write: a row on the same pipe never begins within it.
void say(const std::string& line);

// Prints each warning on stderr, on lines that fit.
void warn(const std::vector<std::string>& warnings);

// Makes SIGINT, SIGTERM and SIGUSR1 ask for an end after the current point, shard or step: the
// command then ends with exit code 4 and can be resumed.
void stop_gently_on_signals();
bool stop_requested();

// Prints notes on stderr about settings of the config that an algorithm handles differently, and,
// for a command that measures, about a cluster that is to be simulated.
void print_notes(const Options& options, const Config& config, bool measures = false);

class Progress;
// --format and --wide, on stdout; notes of other formats than text go to stderr. A line of
// `progress` is taken away before a row is written.
TableStyle table_style(const Options& options, Progress* progress = nullptr);
// Leaves out the columns and options that all points have in common: they stand once above the
// table, unless it is wide or no text. Makes the others as wide as what they hold. Returns the
// words of the options left out.
std::set<std::string> leave_out_constants(TableStyle& style, const std::vector<Point>& points);
// Makes the table for the records of these points.
Table<PointRecord> record_table(const Options& options, const std::vector<Point>& points,
                                Progress* progress = nullptr);
// Adds the record's row: in colour on a terminal without NO_COLOR, or with --color always.
void add_record(Table<PointRecord>& table, const PointRecord& record, const Options& options);

// Returns what every kind of run says of itself. `points`: of the sweep, those skipped included.
RunInfo run_info(const Config& config, const Options& options, size_t points);
// Returns where `run` and `train` put their result, and its head. `threads` of each rank.
// Collective.
RunTarget run_target(const Options& options, const Sweep& sweep, int threads, World& world);
// Returns the options that select the same points, quoted for a shell, to go on with a run.
std::string same_options(const Options& options);
// Prints the number of points by status, the verdict, and where the result is. `remark`: after the
// counts.
void print_summary(TableWriter& table, const Summary& summary, std::string_view remark,
                   const std::string& directory);
// Points of more ranks than there are do not fail a run, but are easily overlooked.
void print_ranks_missing(TableWriter& table, const std::vector<Point>& points, int world_size);

// One line per point: rewritten on a terminal, appended elsewhere. Silent on ranks other than 0.
class Progress {
 public:
  Progress(const Options& options, bool is_root, int points);
  void start(int index, const std::string& what, double estimated_s);  // 0: not known
  // Shows the progress of a long point: rewritten on a terminal, else a line at most every 30 s.
  void step(const std::string& text);
  // `estimated_left_s`: of all points after this one, by the same estimate that start() was given;
  // they take `most_left_s` at most.
  void done(const std::string& outcome, double took_s, double estimated_s, double estimated_left_s,
            double most_left_s);
  void note(const std::string& line);  // a warning that stays
  void clear();                        // before something else is printed

 private:
  void write_line(const std::string& text, bool stays);  // behind "[3/40] "
  bool enabled_, rewrite_;
  int points_, index_ = 0;
  std::string what_;  // the point at hand
  double last_step_s_ = 0;
  double took_s_ = 0, estimated_s_ = 0;  // so far: their ratio corrects the estimates
};

}  // namespace longnet
