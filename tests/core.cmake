flashlatent_test(core_test)
