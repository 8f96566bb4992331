// `lnbench compare`: did anything get slower between two results?
#include "io/compare.h"
#include "io/units.h"
#include "lnbench/terminal.h"

namespace longnet {

int run_compare(const Options& options) {
  const double threshold = parse_fraction(options.threshold);
  Progress progress(options, true, 3);  // 100,000 points on each side take seconds to read
  progress.start(1, "reading " + options.base, 0);
  const Result base = read_result(options.base);
  progress.start(2, "reading " + options.now, 0);
  const Result now = read_result(options.now);
  progress.start(3, "comparing", 0);
  const Comparison comparison =
      compare_results(base, now, {.threshold = threshold, .any_transport = options.any_transport});
  write_comparison(comparison, table_style(options, &progress));
  if (comparison.regressed()) return kRegression;
  return comparison.decided() > 0 ? kOk : kFailed;
}

}  // namespace longnet
