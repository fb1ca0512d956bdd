// The head of the model that a pipeline trains.
#pragma once

#include "trireme/config/choices.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::model {

constexpr HeadKind trained_head(config::Command command) {
  return command == config::Command::rm ? HeadKind::score : HeadKind::language;
}

}  // namespace trireme::model
