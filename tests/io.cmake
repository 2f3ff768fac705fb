# Data that lies beside a checkout, where there is some: golden cases and real traces.
set(FLASHLATENT_SHARED_DIR ${PROJECT_SOURCE_DIR}/../shared CACHE PATH "Golden cases and traces, if any")

function(flashlatent_io_test name)
  flashlatent_test(${name} LIBS flashlatent_io)
  target_compile_definitions(${name} PRIVATE FLASHLATENT_SHARED_DIR="${FLASHLATENT_SHARED_DIR}")
endfunction()

flashlatent_io_test(io_safetensors)
flashlatent_io_test(io_case)
flashlatent_io_test(io_trace)
