function(flashlatent_serve_test name)
  flashlatent_test(${name} LIBS flashlatent_serve)
  target_compile_definitions(${name} PRIVATE FLASHLATENT_SHARED_DIR="${FLASHLATENT_SHARED_DIR}")
endfunction()

flashlatent_serve_test(serve_content_test)
flashlatent_serve_test(serve_scheduler_test)
flashlatent_serve_test(serve_replay_test)
