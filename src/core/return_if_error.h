// Errors as values, passed on.
#pragma once

#include "flashlatent/status.h"

/// Returns a Status from the enclosing function unless it is ok.
#define FLASHLATENT_RETURN_IF_ERROR(expression)                        \
  do {                                                                 \
    if (::flashlatent::Status status_ = (expression); !status_.ok()) { \
      return status_;                                                  \
    }                                                                  \
  } while (false)
