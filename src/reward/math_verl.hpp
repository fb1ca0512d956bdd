// Whether verl counts an answer as right: its graders of MATH (prm800k's and Hendrycks' is_equiv)
// and of GSM8K (verl 0.9.1, verl/utils/reward_score/{math_reward,gsm8k}.py).
#pragma once

#include <string_view>

namespace trireme::reward {

// The last \boxed{...} or \fbox{...} of the response against the label (or the label's own box),
// as texts after verl's normalisation. Where the label has "#### ", or the response has that but
// no box: the number after the last "#### " in the response's last 300 characters, as a text
// without thousands separators, as for GSM8K.
bool equal_by_verl(std::string_view response, std::string_view label);

}  // namespace trireme::reward
