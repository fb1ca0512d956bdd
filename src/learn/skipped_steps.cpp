#include "trireme/learn/skipped_steps.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"

namespace trireme::learn {

void SkippedSteps::count(const std::string& model, const zero::StepResult& result, bool talks) {
  if (result.updated) {
    in_a_row_ = 0;
    return;
  }
  ++in_a_row_;
  const std::string what =
      base::text("an optimizer step of the ", model, " was left out: ", result.not_finite);
  VALIDATE(
      most_ < 0 || in_a_row_ <= most_, ExitCode::internal, what, "; it is the ", in_a_row_,
      in_a_row_ == 1   ? "st"
      : in_a_row_ == 2 ? "nd"
      : in_a_row_ == 3 ? "rd"
                       : "th",
      " in a row, more than train.max_skipped_steps = ", most_,
      ": go back to an earlier checkpoint (ckpt.resume) with a lower learning rate, and look at ",
      "grad_norm, kl and the samples before it");
  if (talks && (in_a_row_ & (in_a_row_ - 1)) == 0)
    log::warning(base::text(
        what, in_a_row_ > 1 ? base::text(" (", in_a_row_, " in a row)") : std::string{}));
}

}  // namespace trireme::learn
